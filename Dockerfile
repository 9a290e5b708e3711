# An image of `poise serve` with the embedded model:
#   docker build -t poise .
#   docker run --rm -p 127.0.0.1:8000:8000 -e POISE_SERVE_TOKEN=... poise
# torch's default package includes CUDA. For a smaller image, give pip the options that find CPU builds:
#   docker build --build-arg TORCH_OPTIONS="OPTIONS OF PIP" -t poise .
FROM python:3.12-slim

ARG TORCH_OPTIONS=""
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1

WORKDIR /opt/poise
COPY constraints.txt ./
RUN if [ -n "$TORCH_OPTIONS" ]; then pip install $TORCH_OPTIONS torch torchvision; \
    else pip install -c constraints.txt torch torchvision; fi
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src ./src
# torch is not pinned here a second time: a CPU build has another version than the one in constraints.txt.
RUN grep -v -E '^(torch|torchvision)==' constraints.txt > /tmp/constraints.txt && pip install -c /tmp/constraints.txt '.[serve]'

RUN useradd --create-home --uid 10001 poise
USER poise
WORKDIR /home/poise
# Weights that are downloaded by name are kept here: mount a volume to keep them between containers.
ENV HF_HOME=/home/poise/.cache/huggingface

EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s \
    CMD python -c "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/ready', timeout=4)"
ENTRYPOINT ["poise", "serve", "--host", "0.0.0.0", "--port", "8000"]
