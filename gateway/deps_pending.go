//go:build pending

package main

import (
	_ "github.com/alexedwards/argon2id"
	_ "github.com/getkin/kin-openapi/openapi3"
	_ "github.com/getkin/kin-openapi/openapi3filter"
	_ "github.com/getkin/kin-openapi/routers/gorillamux"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/pressly/goose/v3"
	_ "go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
)
