#!/bin/sh
# Lists the packages whose tests start nothing (unit), or those that start servers or machines (integration).
set -eu
case ${1-} in
unit) want=0 ;;
integration) want=1 ;;
*) echo "usage: $0 unit|integration" >&2; exit 2 ;;
esac
go list -f '{{.ImportPath}} {{join .TestImports ","}},{{join .XTestImports ","}},{{join .Imports ","}}{{if or .TestGoFiles .XTestGoFiles}} has-tests{{end}}' work |
	awk -v want=$want '/ has-tests$/ {
		server = ($0 ~ /kubebyon\/pkg\/test\// || $1 ~ /kubebyon\/pkg\/test\/|\/joinscript$/) ? 1 : 0
		if (server == want) print $1
	}'
