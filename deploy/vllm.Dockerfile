# The worker with vLLM, on its makers' own image: their torch, CUDA and transformers stay exactly as they are.
# Turnwire's other requirements are installed; a conflict with the image fails the build.

ARG BASE=vllm/vllm-openai:v0.32.0
FROM ${BASE}
LABEL org.opencontainers.image.title=turnwire
ARG EXTRAS=""

WORKDIR /opt/turnwire
COPY . .
RUN --mount=type=secret,id=ca,target=/tmp/ca.pem \
    if [ -s /tmp/ca.pem ]; then export PIP_CERT=/tmp/ca.pem; fi; \
    python3 -m pip freeze --all --exclude-editable | grep -E '^[A-Za-z0-9._-]+==' > /tmp/constraints.txt \
    && python3 -m pip install --no-cache-dir --constraint /tmp/constraints.txt ".${EXTRAS:+[$EXTRAS]}"
RUN groupadd --gid 10001 turnwire \
    && useradd --uid 10001 --gid turnwire --no-create-home --home-dir /cache --shell /usr/sbin/nologin turnwire \
    && install -d -o turnwire -g turnwire -m 0700 /cache /cache/huggingface /secrets
# vLLM, Triton and FlashInfer put compiled code below HOME.
ENV HOME=/cache \
    HF_HOME=/cache/huggingface
WORKDIR /cache
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["turnwire"]
CMD ["serve", "worker", "--engine", "vllm"]
