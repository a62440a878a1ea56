package rpc_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
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
	"github.com/nats-io/nkeys"

	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/pkg/test/natstest"
)

func write(t *testing.T, name string, data []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// certificate gives one of 127.0.0.1 that is its own CA.
func certificate(t *testing.T) (tls.Certificate, []byte) {
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
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestConnectWithAKeyOverTLS(t *testing.T) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	cert, ca := certificate(t)
	url := natstest.New(t, func(o *server.Options) {
		o.Nkeys = []*server.NkeyUser{{Nkey: public}}
		o.TLS, o.TLSConfig, o.TLSTimeout = true, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}, 10
	})
	quiet := slog.New(slog.DiscardHandler)
	key, trust := write(t, "seed", append(seed, '\n')), write(t, "ca.pem", ca)
	conn, err := rpc.Connect(t.Context(), rpc.NATS{NATSURL: strings.Replace(url, "nats:", "tls:", 1), NATSNKeyFile: key, NATSCAFile: trust}, "x", quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if state, err := conn.TLSConnectionState(); err != nil || len(state.VerifiedChains) == 0 {
		t.Errorf("%v, %v", state, err)
	}

	if _, err := rpc.Connect(t.Context(), rpc.NATS{NATSURL: url, NATSCAFile: trust}, "x", quiet); err == nil || !strings.Contains(err.Error(), "refused our credentials") {
		t.Errorf("without a key: %v", err)
	}
}

func TestFilesOfTheConnectionThatAreNone(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	none := filepath.Join(t.TempDir(), "none")
	broken := write(t, "broken", []byte("SUAhunter2hunter2\n"))
	for want, to := range map[string]rpc.NATS{
		"KUBEBYON_NATS_NKEY_FILE: open " + none + ": no such file or directory; it accepts a file with the seed": {NATSNKeyFile: none},
		"KUBEBYON_NATS_NKEY_FILE: " + broken + " is none; it accepts a file with the seed of an nkey":            {NATSNKeyFile: broken},
		"KUBEBYON_NATS_CA_FILE: open " + none + ": no such file or directory; it accepts a PEM file":             {NATSCAFile: none},
		"KUBEBYON_NATS_CA_FILE: " + broken + " is none; it accepts a PEM file with certificates":                 {NATSCAFile: broken},
	} {
		to.NATSURL = "nats://127.0.0.1:1"
		if _, err := rpc.Connect(t.Context(), to, "x", quiet); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}
