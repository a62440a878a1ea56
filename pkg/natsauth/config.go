package natsauth

import (
	"fmt"
	"strings"

	"github.com/nats-io/nkeys"
)

// TLS names the files, as the NATS server sees them, that it serves TLS with.
type TLS struct{ Cert, Key string }

// ServerConfig writes a NATS server's configuration with one user for each service, by their public keys, and nobody else. It says
// nothing of addresses and ports, which belong to how the server is run. The same input gives the same text.
func ServerConfig(public map[Service]string, tls *TLS) (string, error) {
	var b strings.Builder
	b.WriteString("# The users of KubeBYON's services, and what each may do. It holds no secret; it is written anew by the setup.\n")
	if tls != nil {
		fmt.Fprintf(&b, "tls {\n  cert_file: %q\n  key_file: %q\n  timeout: 5\n}\n", tls.Cert, tls.Key)
	}
	b.WriteString("authorization {\n  users = [\n")
	for _, s := range Services() {
		key := public[s]
		if !nkeys.IsValidPublicUserKey(key) {
			return "", fmt.Errorf("natsauth: there is no valid public key of %s", s)
		}
		fmt.Fprintf(&b, "    { # %s\n      nkey: %q\n      permissions: {\n", s, key)
		fmt.Fprintf(&b, "        publish: { allow: %s }\n", list(publish(s)))
		fmt.Fprintf(&b, "        subscribe: { allow: %s }\n", list(subscribe(s)))
		if len(Of(s).Serves) > 0 {
			fmt.Fprintf(&b, "        allow_responses: { max: 1, expires: %q }\n", answerTime)
		}
		b.WriteString("      }\n    }\n")
	}
	b.WriteString("  ]\n}\n")
	return b.String(), nil
}

func list(subjects []string) string {
	var b strings.Builder
	b.WriteString("[\n")
	for _, subject := range subjects {
		fmt.Fprintf(&b, "          %q\n", subject)
	}
	b.WriteString("        ]")
	return b.String()
}
