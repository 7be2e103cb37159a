#!/bin/sh
# Build the image with buildah, run it with podman as it is meant to be run, ask it, stop it while it answers, and
# start it again on the same log:
#
#   sh deploy/docker/check.sh [OPTION OF buildah bud]...
#
# Without a registry, make the base of the same Debian first:
#
#   debootstrap --variant=minbase bookworm base http://deb.debian.org/debian
#   tar -C base -c . | podman import - localhost/debian:bookworm-slim
#   sh deploy/docker/check.sh --build-arg BASE=localhost/debian:bookworm-slim
#
# Needs root, and neither a daemon nor systemd: RUN lines are run in a chroot, the container has no cgroup.
set -eu
cd "$(dirname "$0")/../.."
image=localhost/armwise:check
name=armwise-check

buildah bud --isolation chroot --network host --format docker --layers \
    --file deploy/docker/Dockerfile --tag "$image" "$@" .

podman rm --force --ignore "$name" >/dev/null
podman volume rm --force "$name" >/dev/null
ARMWISE_API_KEY=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
export ARMWISE_API_KEY
# no network but a loopback device: nothing is fetched when the service starts
podman run --detach --name "$name" --read-only --read-only-tmpfs=false --tmpfs /tmp:mode=1777 --shm-size 512m \
    --cap-drop all --security-opt no-new-privileges --network none --env ARMWISE_API_KEY \
    --ulimit nofile=16384:16384 --ulimit nproc=16384:16384 --cgroups disabled --no-healthcheck \
    --volume "$name:/var/lib/armwise" "$image"
answer=$(mktemp)
trap 'rm -f "$answer"; podman rm --force --ignore "$name" >/dev/null; podman volume rm --force "$name" >/dev/null' EXIT

inside() { podman exec "$name" "$@"; }
get() { inside python3 -c "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000$1').read().decode())"; }
ready() {
    until get /ready 2>/dev/null; do
        test "$(podman inspect --format '{{.State.Running}}' "$name")" = true || { podman logs "$name"; exit 1; }
        sleep 2
    done
}
ready
echo "== what its HEALTHCHECK asks"
get /health/decides
echo "== a question over HTTP"
inside armwise ask 'Which function merges sorted inputs lazily?'
echo "== without a key"
get /v1/policy 2>&1 | tail -1
echo "== who it is, and what it may do"
inside sh -c 'id; grep -E "CapEff|CapBnd|NoNewPrivs" /proc/1/status; cat /proc/1/comm; touch /opt/x /etc/x /x || true'
echo "== what it wrote"
inside sh -c 'du -sh /var/lib/armwise /tmp'
echo "== it stops while it answers"
inside armwise ask 'Which function merges sorted inputs lazily?' >"$answer" &
asking=$!
until test -s "$answer"; do
    kill -0 "$asking"
    sleep 0.1
done
podman stop --time 180 "$name"
wait "$asking"
cat "$answer"
code=$(podman inspect --format '{{.State.ExitCode}}' "$name")
echo "exit code $code"
test "$code" = 0
echo "== the same log is served again, with what was answered last"
decision=$(sed -n 's/^armwise feedback \([^ ]*\) .*/\1/p' "$answer")
podman start "$name"
ready
inside armwise feedback "$decision" thumb=1
inside armwise verify "$decision"
inside armwise log rebuild --verify --config /etc/armwise/serve_config.yaml
