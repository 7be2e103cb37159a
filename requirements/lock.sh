#!/bin/sh
# Write requirements/base.txt, requirements/dev.txt and requirements/docs.txt from pyproject.toml.
# torch stands first and without a local version, so that an index with CPU builds may give one.
set -eu
compile="$1 --quiet --strip-extras --no-header --no-annotate --no-emit-index-url --no-emit-find-links --no-emit-trusted-host"
here=requirements
torch_first() { { grep '^torch==' "$1" | sed 's/+.*//'; grep -v '^torch==' "$1"; } >"$2"; }

$compile --upgrade --output-file "$here/base.all" pyproject.toml
torch_first "$here/base.all" "$here/base.txt"
$compile --constraint "$here/base.txt" --extra dev --extra bench --extra ner --output-file "$here/dev.all" pyproject.toml
torch_first "$here/dev.all" "$here/dev.txt"
sed -n 's/^docs = \["\(.*\)"\]$/\1/p' pyproject.toml | $compile --upgrade --output-file "$here/docs.txt" -
rm "$here/base.all" "$here/dev.all"
