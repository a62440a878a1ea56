//go:build pending

package gateway

import (
	_ "github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/pressly/goose/v3"
	_ "github.com/alexedwards/argon2id"
	_ "go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	_ "github.com/getkin/kin-openapi/openapi3"
	_ "github.com/getkin/kin-openapi/openapi3filter"
	_ "github.com/getkin/kin-openapi/routers/gorillamux"
	_ "github.com/google/go-cmp/cmp"
)
