//go:build pending

package pkg

import (
	_ "github.com/nats-io/nats.go"
	_ "github.com/nats-io/nats-server/v2/server"
	_ "github.com/go-kit/kit/endpoint"
	_ "github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/pressly/goose/v3"
	_ "github.com/pressly/goose/v3/lock"
	_ "github.com/caarlos0/env/v11"
	_ "go.opentelemetry.io/otel"
	_ "go.opentelemetry.io/otel/sdk/trace"
	_ "go.opentelemetry.io/contrib/exporters/autoexport"
	_ "go.opentelemetry.io/otel/propagation"
	_ "github.com/exaring/otelpgx"
	_ "k8s.io/client-go/kubernetes"
	_ "k8s.io/client-go/tools/clientcmd"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/apimachinery/pkg/api/errors"
	_ "github.com/google/go-cmp/cmp"
	_ "go.uber.org/goleak"
	_ "github.com/hashicorp/golang-lru/v2/expirable"
)
