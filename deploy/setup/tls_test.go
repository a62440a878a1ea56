package main

import (
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
	"time"
)

func TestCertificateOfTheNATSServer(t *testing.T) {
	now := time.Now()
	o := options{natsHosts: []string{"nats", "10.0.0.7"}, natsDir: "/etc/nats", now: now}
	first, err := complete(state{}, o)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(first[bus][certFile], first[bus][certKeyFile])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(first["node"][caFile])
	for _, host := range o.natsHosts {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: now.AddDate(9, 0, 0)}); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	if text := string(first[bus][configFile]); !strings.Contains(text, `cert_file: "/etc/nats/tls.crt"`) {
		t.Errorf("%s", text)
	}
	renewed := func(o options) bool {
		t.Helper()
		next, err := complete(first, o)
		if err != nil {
			t.Fatal(err)
		}
		if string(next["edge"][caFile]) != string(next[bus][certFile]) {
			t.Error("a service does not know the certificate")
		}
		return string(next[bus][certFile]) != string(first[bus][certFile])
	}
	near, fewer, other := o, o, o
	near.now = pair.Leaf.NotAfter.Add(-certRenew).Add(time.Minute)
	fewer.natsHosts = o.natsHosts[:1]
	other.natsHosts = []string{"nats.example.com"}
	if renewed(o) || renewed(fewer) || !renewed(near) || !renewed(other) {
		t.Errorf("renewed: the same %v, fewer names %v, near its end %v, another name %v", renewed(o), renewed(fewer), renewed(near), renewed(other))
	}
}
