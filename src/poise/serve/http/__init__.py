"""The HTTP interface of a `poise.serve.service.Service`."""
