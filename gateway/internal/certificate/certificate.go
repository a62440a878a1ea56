// Package certificate has the certificate that the gateway shows on its TLS port: from two files, or from an ACME server. It must
// never write a private key anywhere but sealed, and never give up a certificate that works for one that does not.
package certificate

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"slices"
	"time"
)

// acmeProtocol is what an ACME server speaks that validates a name over TLS (RFC 8737).
const acmeProtocol = "acme-tls/1"

// base is what is common to all: TLS 1.2 and later, HTTP/2 where the client has it.
func base() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
}

// soon says whether a certificate is about to expire: in two weeks, or in a third of its life where that is less.
func soon(leaf *x509.Certificate, now time.Time) bool {
	left := min(14*24*time.Hour, leaf.NotAfter.Sub(leaf.NotBefore)/3)
	return !now.Before(leaf.NotAfter.Add(-left))
}

// described are the attributes of a certificate in the log.
func described(leaf *x509.Certificate) []any {
	names := slices.Clone(leaf.DNSNames)
	for _, address := range leaf.IPAddresses {
		names = append(names, address.String())
	}
	return []any{slog.Any("names", names), slog.Time("expires", leaf.NotAfter.UTC()), slog.String("serial", leaf.SerialNumber.Text(16))}
}

// usable says whether text begins with certificates that can be parsed.
func usable(text []byte) bool {
	found := false
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return false
		}
		found = true
	}
	return found
}
