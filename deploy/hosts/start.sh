#!/bin/bash
# Starts or stops Ray on plain hosts over ssh. See docs/deploy/hosts.md.
#
#   deploy/hosts/start.sh up HEAD [WORKER...]     prints the address and where the token lies
#   deploy/hosts/start.sh down HEAD [WORKER...]
#
# Environment: TUNER_VENV (the same path on every host), TUNER_PORT (6379), TUNER_CPUS (ranks per
# host on CPU; default: Ray counts cores and GPUs), TUNER_TOKEN_FILE (~/.ray/auth_token).
set -euo pipefail

verb=${1:?"usage: start.sh up|down HEAD [WORKER...]"}
head=${2:?"usage: start.sh up|down HEAD [WORKER...]"}
shift 2
venv=${TUNER_VENV:?"set TUNER_VENV to the virtual environment's path, equal on all hosts"}
port=${TUNER_PORT:-6379}
token_file=${TUNER_TOKEN_FILE:-$HOME/.ray/auth_token}

for value in "$venv" "$port" "$token_file" "${TUNER_CPUS:-1}" "$head" "$@"; do
    if [[ ! $value =~ ^[A-Za-z0-9._/@:-]+$ ]]; then
        echo "error: '$value' has a character that a path, host or number does not need" >&2
        exit 2
    fi
done

if [ "$verb" = down ]; then
    for host in "$head" "$@"; do ssh "$host" "$venv/bin/ray stop"; done
    exit
fi

if [ ! -s "$token_file" ]; then
    mkdir -p "$(dirname "$token_file")"
    (umask 077 && "$venv/bin/python" -c 'import secrets; print(secrets.token_hex(32), end="")' > "$token_file")
fi

remote() {  # host, arguments of `ray start`; the token goes by standard input, not the command line
    local host=$1; shift
    # shellcheck disable=SC2029
    ssh "$host" "umask 077 && mkdir -p ~/.ray && cat > ~/.ray/auth_token && \
        RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 RAY_memory_monitor_refresh_ms=0 \
        RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES=1 PYTHONSAFEPATH=1 \
        $venv/bin/ray start --disable-usage-stats ${TUNER_CPUS:+--num-cpus=$TUNER_CPUS} $*" < "$token_file"
}

address=$(ssh "$head" "hostname -I" | awk '{print $1}')
remote "$head" --head --node-ip-address="$address" --port="$port" --include-dashboard=false
for host in "$@"; do remote "$host" --address="$address:$port"; done
echo "address: $address:$port"
echo "token:   $token_file"
echo "next:    RAY_AUTH_MODE=token tuner run study.toml --set launcher.address=\"$address:$port\""
