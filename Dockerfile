# An image of `poise serve` with the embedded model:
#   docker build -t poise .
#   docker run --rm -p 127.0.0.1:8000:8000 -e POISE_SERVE_TOKEN=... poise
# torch's default package includes CUDA, several gigabytes. For a smaller image without it, put the CPU builds (+cpu) of torch
# and torchvision, in the versions of constraints.txt, into a folder named wheels; pytorch.org says where they are:
#   docker build --build-arg TORCH_OPTIONS="--find-links wheels" -t poise .
FROM python:3.12-slim

ARG TORCH_OPTIONS=""
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1

WORKDIR /opt/poise
COPY constraints.txt wheel[s] ./wheels/
RUN mv wheels/constraints.txt . && pip install -c constraints.txt $TORCH_OPTIONS torch torchvision
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src ./src
RUN pip install -c constraints.txt $TORCH_OPTIONS '.[serve]'

RUN useradd --create-home --uid 10001 poise
USER poise
WORKDIR /home/poise
# Weights that are downloaded by name are kept here: mount a volume to keep them between containers. A new volume gets the
# owner of the folder that it is mounted on, so the folder has to exist.
ENV HF_HOME=/home/poise/.cache/huggingface TRITON_CACHE_DIR=/home/poise/.cache/triton
RUN mkdir -p /home/poise/.cache/huggingface

EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s \
    CMD python -c "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/ready', timeout=4)"
ENTRYPOINT ["poise", "serve", "--host", "0.0.0.0", "--port", "8000"]
