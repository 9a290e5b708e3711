"""Tables of results as data, and the formats that render them."""
