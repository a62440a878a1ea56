package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/pkg/config"
	"github.com/kubebyon/kubebyon/pkg/telemetry"
)

type limits struct {
	Burst int `env:"BURST" envDefault:"5" accepts:"a whole number from 1"`
}

type sample struct {
	config.Common
	Addr     config.HostPort  `env:"KUBEBYON_HTTP_ADDR" envDefault:":8080"`
	Database config.DSN       `env:"KUBEBYON_DATABASE_DSN,required"`
	Key      telemetry.Secret `env:"KUBEBYON_API"`
	Secure   bool             `env:"KUBEBYON_SECURE"`
	Origins  []string         `env:"KUBEBYON_ORIGINS"`
	Wait     time.Duration    `env:"KUBEBYON_WAIT" envDefault:"3s"`
	Count    int              `env:"KUBEBYON_COUNT_TOKEN"`
	Modes    []string         `env:"KUBEBYON_MODES" enum:"a|b"`
	Join     limits           `envPrefix:"KUBEBYON_JOIN_"`
}

const dsn = "postgresql://kubebyon:hunter2@db/kubebyon"

func load(pairs ...string) (sample, error) {
	m := map[string]string{"KUBEBYON_DATABASE_DSN": dsn}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return config.Load[sample](func(k string) (string, bool) { v, ok := m[k]; return v, ok })
}

func TestLoad(t *testing.T) {
	cfg, err := load("KUBEBYON_LOG_FORMAT", "json", "KUBEBYON_ORIGINS", "a,b", "KUBEBYON_JOIN_BURST", "7", "KUBEBYON_LOG_LEVEL", "")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.LogFormat != "json" || cfg.LogLevel != "info" || cfg.Addr != ":8080" || len(cfg.Origins) != 2 ||
		cfg.Join.Burst != 7 || cfg.Wait != 3*time.Second || string(cfg.Database.Secret) != dsn {
		t.Fatalf("%#v", cfg)
	}
}

func TestErrorsAreOneLineAndNameTheVariable(t *testing.T) {
	for _, c := range []struct{ key, value, want string }{
		{"KUBEBYON_LOG_FORMAT", "xml", `KUBEBYON_LOG_FORMAT: "xml" is not valid (it is not one of the known values); it accepts one of text, json`},
		{"KUBEBYON_HTTP_ADDR", "8080", `KUBEBYON_HTTP_ADDR: "8080" is not valid (it is not an address with a port); it accepts an address and a port, such as :8080 or 127.0.0.1:8080`},
		{"KUBEBYON_HTTP_ADDR", ":99999", `KUBEBYON_HTTP_ADDR: ":99999" is not valid (its port is not a number from 0 to 65535); it accepts an address and a port, such as :8080 or 127.0.0.1:8080`},
		{"KUBEBYON_SECURE", "maybe", `KUBEBYON_SECURE: "maybe" is not valid; it accepts true or false`},
		{"KUBEBYON_WAIT", "3", `KUBEBYON_WAIT: "3" is not valid; it accepts a duration, such as 90s or 5m`},
		{"KUBEBYON_JOIN_BURST", "many\nlines", `KUBEBYON_JOIN_BURST: "many\nlines" is not valid; it accepts a whole number from 1`},
		{"KUBEBYON_MODES", "a,c", `KUBEBYON_MODES: "a,c" is not valid (it is not one of the known values); it accepts a list, separated by ,, of a, b`},
		{"KUBEBYON_DATABASE_DSN", "mysql://kubebyon:hunter2@db/x", `KUBEBYON_DATABASE_DSN: its value is not valid; it accepts a PostgreSQL URL, such as postgresql://user:password@host:5432/database`},
		{"KUBEBYON_DATABASE_DSN", "postgresql://kubebyon:hunter2@db:port/x%zz", `KUBEBYON_DATABASE_DSN: its value is not valid; it accepts a PostgreSQL URL, such as postgresql://user:password@host:5432/database`},
		{"KUBEBYON_DATABASE_DSN", "", `KUBEBYON_DATABASE_DSN is not set and has no default; it accepts a PostgreSQL URL, such as postgresql://user:password@host:5432/database`},
		{"KUBEBYON_COUNT_TOKEN", "hunter2", `KUBEBYON_COUNT_TOKEN: its value is not valid; it accepts a whole number`},
	} {
		_, err := load(c.key, c.value)
		if err == nil {
			t.Errorf("%s=%q was accepted", c.key, c.value)
			continue
		}
		if err.Error() != c.want {
			t.Errorf("%s=%q\n got %s\nwant %s", c.key, c.value, err, c.want)
		}
		if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error repeats a secret or has two lines: %q", c.key, err)
		}
	}
}

// Two structs may have a field of one name and type: the variable that is wrong is named, not the other one.
func TestTheWrongOneOfTwoIsNamed(t *testing.T) {
	type addresses struct {
		One struct {
			Addr config.HostPort `env:"ONE_ADDR"`
		}
		Two struct {
			Addr config.HostPort `env:"TWO_ADDR"`
		}
	}
	for wrong, right := range map[string]string{"ONE_ADDR": "TWO_ADDR", "TWO_ADDR": "ONE_ADDR"} {
		values := map[string]string{wrong: "nowhere", right: ":80"}
		_, err := config.Load[addresses](func(k string) (string, bool) { v, ok := values[k]; return v, ok })
		if err == nil || !strings.HasPrefix(err.Error(), wrong+`: "nowhere"`) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}
