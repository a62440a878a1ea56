#!/bin/sh
# Runs every fuzz target for the time given (default 10s).
set -eu
cd "$(dirname "$0")/.."
time=${1:-10s}
git grep -lE '^func Fuzz[A-Z]' -- '*_test.go' | while read -r file; do
	dir=$(dirname "$file")
	grep -oE '^func Fuzz[A-Za-z0-9_]+' "$file" | sed 's/^func //' | while read -r target; do
		echo "fuzz $dir $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 1x "./$dir"
	done
done
