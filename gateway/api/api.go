// Package api holds the description of the HTTP API. It must describe every route that the gateway serves.
package api

import _ "embed"

// OpenAPI is an OpenAPI 3.0 document in YAML.
//
//go:embed openapi.yaml
var OpenAPI []byte
