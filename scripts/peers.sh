#!/usr/bin/env bash
# Starts servers of other projects for the tests of backends (docs/backends.md): llama-cpp-python's, and vLLM's on
# the CPU where the Python of an environment that has it is given.
#
#   scripts/peers.sh DIR MODEL.gguf [VLLM_PYTHON]
#
# DIR, outside the repository, gets the environment (reused if it is there), logs and converted weights.
# LLAMA_PYTHON names an environment that has llama-cpp-python[server] already. The last line printed sets
# STOLON_PEER_URLS; the servers end with this script.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
dir=$(mkdir -p "$1" && cd "$1" && pwd)
absolute() { echo "$(cd "$(dirname "$1")" && pwd)/$(basename "$1")"; }
model=$(absolute "$2")
vllm=${3:+$(absolute "$3")}
llama=$(absolute "${LLAMA_PYTHON:-$dir/llama/bin/python}" 2>/dev/null || true)
python=$(absolute "${PYTHON:-$(dirname "$0")/../.venv/bin/python}")
cd "$dir"  # not in the repository: its folders have names that other packages look for

pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM

free_port() {
  "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

wait_for() { # URL LOG PID
  for _ in $(seq 600); do
    if "$python" -c "import httpx, sys; httpx.get(sys.argv[1]).raise_for_status()" "$1/v1/models" 2>/dev/null; then
      return
    fi
    kill -0 "$3" 2>/dev/null || { tail -n 20 "$2" >&2; exit 1; }
    sleep 1
  done
  echo "no answer from $1" >&2
  exit 1
}

if [ ! -x "$llama" ]; then
  "$python" -m venv "$dir/llama"
  llama=$dir/llama/bin/python
  "$llama" -m pip install --quiet 'llama-cpp-python[server]>=0.3.16'
fi
port=$(free_port)
# logits_all: log-probs are refused without it. A new request must not end the ones before it.
"$llama" -m llama_cpp.server --model "$model" --host 127.0.0.1 --port "$port" --n_ctx 2048 --n_batch 256 \
  --logits_all true --interrupt_requests false >"$dir/llama.log" 2>&1 &
pids+=($!)
urls=http://127.0.0.1:$port
wait_for "$urls" "$dir/llama.log" $!

if [ -n "$vllm" ]; then
  weights=$dir/$(basename "$model" .gguf)
  if [ ! -d "$weights" ]; then
    mkdir "$weights.part"
    "$python" - "$model" "$weights.part" <<'PYTHON'
import sys
from pathlib import Path

from stolon.benchmarks.hf_folder import write_hf_folder

write_hf_folder(*map(Path, sys.argv[1:]))
PYTHON
    mv "$weights.part" "$weights"
  fi
  port=$(free_port)
  VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 \
    "$vllm" -m vllm.entrypoints.openai.api_server --model "$weights" --host 127.0.0.1 --port "$port" \
    --dtype bfloat16 --max-model-len 2048 --enforce-eager --enable-prompt-tokens-details >"$dir/vllm.log" 2>&1 &
  pids+=($!)
  wait_for "http://127.0.0.1:$port" "$dir/vllm.log" $!
  urls=$urls,http://127.0.0.1:$port
fi

echo "export STOLON_PEER_URLS=$urls"
wait
