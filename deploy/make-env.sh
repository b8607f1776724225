#!/bin/sh
# Writes .env for docker compose, by this machine's hardware: make-env.sh [MODEL [ENGINE [SERVER]]]
#
# With an NVIDIA GPU: the worker with ENGINE (trtllm or vllm; default trtllm), and MODEL, or a model that fits into the
# smallest GPU. Without one: the demo (engine script), which writes with MODEL's template. With ENGINE vllm-server (or
# sglang-server, llama-server): the worker in front of the server at the address SERVER, or on
# this machine's port 8000. Other lines of .env stay.
set -eu
umask 077 # .env may have passwords

memory=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null | sort -n | head -n 1) || true
model=${1:-}
engine=${2:-}
case $engine in
    "") if [ -n "$memory" ]; then engine=trtllm; else engine=script; fi ;;
    script | trtllm | vllm) ;;
    vllm-server | sglang-server | llama-server)
        if [ -z "$model" ]; then echo "make-env: name the model that the server has" >&2; exit 2; fi ;;
    *) echo "make-env: the engine is one of script, trtllm, vllm, vllm-server, sglang-server, llama-server" >&2; exit 2 ;;
esac
if [ "$engine" = trtllm ] || [ "$engine" = vllm ]; then
    if [ -z "$model" ]; then
        if [ "${memory:-0}" -ge 24000 ]; then model=Qwen/Qwen3-8B; else model=Qwen/Qwen3-0.6B; fi
    fi
    case $(docker info --format '{{json .Runtimes}}' 2>/dev/null || true) in
        *nvidia*) ;;
        *) echo "make-env: Docker has no nvidia runtime: install NVIDIA's container toolkit" >&2 ;;
    esac
fi

kept=$(grep -Ev '^(COMPOSE_FILE|COMPOSE_PROFILES|TURNWIRE_MODEL|TURNWIRE_DEMO_MODEL|TURNWIRE_ENGINE|TURNWIRE_ENGINE_URL)=' .env 2>/dev/null || true)
{
    if [ -n "$kept" ]; then printf '%s\n' "$kept"; fi
    case $engine in
        script)
            echo "COMPOSE_FILE=compose.demo.yaml"
            if [ -n "$model" ]; then echo "TURNWIRE_DEMO_MODEL=$model"; fi ;;
        vllm)
            echo "COMPOSE_FILE=compose.yaml:deploy/compose.vllm.yaml"
            echo "TURNWIRE_MODEL=$model" ;;
        trtllm)
            echo "TURNWIRE_MODEL=$model" ;;
        *-server)
            echo "COMPOSE_FILE=compose.yaml:deploy/compose.server.yaml"
            echo "TURNWIRE_ENGINE=$engine"
            echo "TURNWIRE_ENGINE_URL=${3:-http://host.docker.internal:8000}"
            echo "TURNWIRE_MODEL=$model" ;;
    esac
} > .env.new
mv .env.new .env
echo "wrote .env: engine $engine, model ${model:-of the demo}"
