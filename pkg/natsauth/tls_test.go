package natsauth_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/kubebyon/kubebyon/pkg/natsauth"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/pkg/test/natstest"
)

func TestUsersOverTLS(t *testing.T) {
	dir := t.TempDir()
	files := natsauth.TLS{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	pair(t, files)
	at := map[natsauth.Service]rpc.NATS{}
	text := config(t, at, &files)
	url := natstest.New(t, func(o *server.Options) {
		if err := o.ProcessConfigString(text); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
	})
	quiet := slog.New(slog.DiscardHandler)
	to := at[natsauth.Gateway]
	to.NATSURL, to.NATSCAFile = strings.Replace(url, "nats:", "tls:", 1), files.Cert
	conn, err := rpc.Connect(t.Context(), to, natsauth.Gateway.ConnectionName(), quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if state, err := conn.TLSConnectionState(); err != nil || len(state.VerifiedChains) == 0 {
		t.Errorf("%v, %v", state, err)
	}
}

// pair writes a certificate of 127.0.0.1 that is its own CA.
func pair(t *testing.T, files natsauth.TLS) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{files.Cert: {Type: "CERTIFICATE", Bytes: der}, files.Key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
