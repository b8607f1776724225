# The worker with TensorRT-LLM, on NVIDIA's own image: its torch, CUDA and transformers stay exactly as they are.
# Turnwire's other requirements are installed; a conflict with the image fails the build. On a driver that is older
# than the image's CUDA (13.2), NVIDIA's container toolkit 1.17 or newer adds the compatibility libraries by itself.

ARG BASE=nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc26
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
    && install -d -o turnwire -g turnwire -m 0700 /cache /cache/huggingface /cache/trtllm /secrets
# Several ranks use MPI on this machine only; with a bridge network it would try the wrong interface.
ENV HOME=/cache \
    HF_HOME=/cache/huggingface \
    TRTLLM_CACHE_DIR=/cache/trtllm \
    OMPI_MCA_btl_tcp_if_include=lo \
    OMPI_MCA_oob_tcp_if_include=lo
WORKDIR /cache
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["turnwire"]
CMD ["serve", "worker", "--engine", "trtllm"]
