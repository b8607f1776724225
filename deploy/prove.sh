#!/usr/bin/env bash
# Builds the images of compose.demo.yaml and proves that the stack answers, scales, and survives the loss of a part.
# Needs Docker with Compose and Buildx, and python3 on this machine. Ends with status 0 if everything held.
#
#   PROVE_BASE=IMAGE    base image [python:3.12-slim]; if it can be neither found nor pulled, one is made with
#                       debootstrap (as root) and imported
#   PROVE_SUITE=NAME    Debian suite for debootstrap [bookworm]
#   PROVE_MIRROR=URL    Debian mirror for debootstrap [its own default]
#   PROVE_NATS=IMAGE    NATS image [nats:2.15-alpine]; if it cannot be pulled, deploy/nats/Dockerfile is built
#   PROVE_PROXY=IMAGE   HAProxy image [haproxy:3.2-alpine]; if it cannot be pulled, deploy/haproxy/Dockerfile is built
#   PROVE_CA=FILE       certificates to trust while building, behind a proxy that has its own
#   PROVE_PORT=N        port on loopback [18000]
#   PROVE_KEEP=1        leave the stack running

set -euo pipefail
cd "$(dirname "$0")/.."

SUITE=${PROVE_SUITE:-bookworm}
PORT=${PROVE_PORT:-18000}
URL=http://127.0.0.1:$PORT
WORK=$(mktemp -d)

export COMPOSE_FILE=compose.demo.yaml COMPOSE_PROJECT_NAME=turnwire-prove
export TURNWIRE_COMPOSE_LISTEN=127.0.0.1:$PORT
export TURNWIRE_COMPOSE_CA=${PROVE_CA:-/dev/null}
# Eight turns at once per worker, so that one worker is soon full and a second one makes a difference.
export TURNWIRE_SLOTS=8 TURNWIRE_TOKEN_DELAY_MS=20

compose() { docker compose --progress quiet "$@"; }
say() { printf '\n== %s\n' "$*"; }
have() { docker image inspect "$1" >/dev/null 2>&1 || docker pull --quiet "$1" >/dev/null 2>&1; }

finish() {
    status=$?
    if [ $status != 0 ]; then docker compose logs --tail 20 >&2 || true; fi
    if [ -z "${PROVE_KEEP:-}" ]; then
        compose down --volumes --timeout 10 >/dev/null 2>&1 || true
        docker image prune --force --filter label=org.opencontainers.image.title=turnwire >/dev/null 2>&1 || true
    fi
    rm -rf "$WORK"
    exit $status
}
trap finish EXIT

base_image() {
    local base=${PROVE_BASE:-python:3.12-slim}
    if ! have "$base"; then
        base=turnwire-base:$SUITE
        if ! have "$base"; then
            echo "no registry: making $base with debootstrap" >&2
            debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates,wget \
                "$SUITE" "$WORK/root" ${PROVE_MIRROR:+"$PROVE_MIRROR"} >"$WORK/debootstrap.log" 2>&1 \
                || { tail -20 "$WORK/debootstrap.log" >&2; return 1; }
            rm -rf "$WORK/root/var/cache/apt/archives" "$WORK/root/var/lib/apt/lists"
            tar -C "$WORK/root" -c . | docker import - "$base" >/dev/null
            rm -rf "$WORK/root"
        fi
    fi
    echo "$base"
}

# The image $1, or one that deploy/$2 makes.
image() {
    local image=$1
    if ! have "$image"; then
        image=turnwire-$2:local
        docker build --quiet --tag "$image" --build-arg BASE="$TURNWIRE_COMPOSE_BASE" \
            --secret id=ca,src="$TURNWIRE_COMPOSE_CA" "deploy/$2" >/dev/null
    fi
    echo "$image"
}

ask() { python3 deploy/prove.py "$URL" "$@"; }

say "images"
TURNWIRE_COMPOSE_BASE=$(base_image)
export TURNWIRE_COMPOSE_BASE
TURNWIRE_COMPOSE_NATS_IMAGE=$(image "${PROVE_NATS:-nats:2.15-alpine}" nats)
TURNWIRE_COMPOSE_PROXY_IMAGE=$(image "${PROVE_PROXY:-haproxy:3.2-alpine}" haproxy)
export TURNWIRE_COMPOSE_NATS_IMAGE TURNWIRE_COMPOSE_PROXY_IMAGE
compose build
docker image ls --format '{{.Repository}}:{{.Tag}}  {{.Size}}' | grep -E '^(turnwire|nats|haproxy)[:-]' | sort

say "a wrong model ends it, with the reason"
if TURNWIRE_DEMO_MODEL=/nowhere compose up >"$WORK/wrong" 2>&1; then cat "$WORK/wrong"; exit 1; fi
grep 'turnwire check: Invalid value for TURNWIRE_MODEL: there is no directory /nowhere' "$WORK/wrong"
compose down --timeout 10

say "one of each"
compose up --detach --wait
ask one
ask load 32 --there worker=1,parser=1

say "a user of the bus hears its own subjects only"
docker compose exec -T frontend timeout --signal INT 3 turnwire tap 'tw.v2.tok.>' >"$WORK/refused" 2>&1 || true
grep -i --max-count 1 'permissions violation' "$WORK/refused"

say "no user of the bus may do more than its service needs"
compose run --rm -T audit

say "two frontends behind one port, two workers, three parsers"
compose up --detach --wait --no-recreate --scale frontend=2 --scale parser=3 --scale worker=2
: >"$WORK/heard"
compose run --rm -T --name "$COMPOSE_PROJECT_NAME-tap" tap --json 'tw.v2.evt.>' >"$WORK/tap" 2>"$WORK/heard" &
tapping=$!
until grep -q 'listening on' "$WORK/heard"; do kill -0 $tapping; sleep 0.1; done
ask load 32 --there worker=2,parser=3
docker kill --signal INT "$COMPOSE_PROJECT_NAME-tap" >/dev/null
wait $tapping
ask spread "$WORK/tap" --over frontend=2,worker=2,parser=3

say "a frontend ends: its turns finish, new ones go to the other"
ask load 16 &
asking=$!
sleep 0.7
docker stop --time 60 "$(docker compose ps --quiet frontend | head -1)" >/dev/null
wait $asking
ask load 16

say "in the middle of 16 turns a parser is killed and a worker stopped"
ask load 16 --there worker=2,parser=3 &
asking=$!
sleep 0.7
docker kill "$(docker compose ps --quiet parser | head -1)" >/dev/null
docker stop --time 60 "$(docker compose ps --quiet worker | head -1)" >/dev/null
wait $asking

say "everything held"
