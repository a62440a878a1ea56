package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"path"
	"slices"
	"time"

	"github.com/kubebyon/kubebyon/pkg/natsauth"
)

const (
	certLife  = 10 * 365 * 24 * time.Hour
	certRenew = 90 * 24 * time.Hour // how long before its end another is made
)

// fillTLS gives the NATS server a certificate that is its own authority, and each service that to know it by. It is kept while it
// is for the same names and has time left.
func fillTLS(want state, o options) (*natsauth.TLS, error) {
	if !fits(want[bus][certFile], want[bus][certKeyFile], o) {
		cert, key, err := newCertificate(o)
		if err != nil {
			return nil, fmt.Errorf("the NATS server's certificate: %w", err)
		}
		want[bus][certFile], want[bus][certKeyFile] = cert, key
	}
	for _, s := range natsauth.Services() {
		want[string(s)][caFile] = want[bus][certFile]
	}
	return &natsauth.TLS{Cert: path.Join(o.natsDir, certFile), Key: path.Join(o.natsDir, certKeyFile)}, nil
}

func fits(cert, key []byte, o options) bool {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil || o.now.Add(certRenew).After(pair.Leaf.NotAfter) {
		return false
	}
	return !slices.ContainsFunc(o.natsHosts, func(host string) bool { return pair.Leaf.VerifyHostname(host) != nil })
}

func newCertificate(o options) (cert, key []byte, err error) {
	pair, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, err
	}
	form := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "KubeBYON NATS"},
		NotBefore: o.now.Add(-time.Hour), NotAfter: o.now.Add(certLife),
		IsCA: true, MaxPathLenZero: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range o.natsHosts {
		if ip := net.ParseIP(host); ip != nil {
			form.IPAddresses = append(form.IPAddresses, ip)
		} else {
			form.DNSNames = append(form.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, form, form, pair.Public(), pair)
	if err != nil {
		return nil, nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(pair)
	if err != nil {
		return nil, nil, err
	}
	var a, b bytes.Buffer
	_ = pem.Encode(&a, &pem.Block{Type: "CERTIFICATE", Bytes: der}) // a buffer takes everything
	_ = pem.Encode(&b, &pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	return a.Bytes(), b.Bytes(), nil
}
