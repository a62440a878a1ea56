package app_test

import (
	"crypto/tls"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/gateway/internal/keyring"
	"github.com/kubebyon/kubebyon/pkg/test/acmetest"
	"github.com/kubebyon/kubebyon/pkg/test/natstest"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

// freePort is a port that nobody listens on now.
func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().(*net.TCPAddr).Port
}

// listening reserves the TLS port of a gateway that is started later.
func listening(t *testing.T) (net.Listener, int) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener, listener.Addr().(*net.TCPAddr).Port
}

// ordering has a gateway get its certificate from the ACME server at url.
func ordering(t *testing.T, listener net.Listener, url string, ca []byte, more map[string]string) wish {
	t.Helper()
	file := filepath.Join(t.TempDir(), "acme-ca.pem")
	put(t, file, ca)
	return func(env map[string]string, w *world) {
		w.tls = listener
		env["KUBEBYON_HTTPS_ADDR"], env["KUBEBYON_CONSOLE_DOMAIN"] = "127.0.0.1:0", console
		env["KUBEBYON_ACME_EMAIL"], env["KUBEBYON_ACME_DIRECTORY_URL"], env["KUBEBYON_ACME_CA_FILE"] = "operator@example.com", url, file
		for name, value := range more {
			env[name] = value
		}
	}
}

// verified is the serial number of the certificate that a client gets who trusts the ACME server's authority alone.
func (w *world) verified(t *testing.T, acme *acmetest.Server, address string) (*big.Int, error) {
	t.Helper()
	conn, err := (&tls.Dialer{NetDialer: &net.Dialer{Timeout: 10 * time.Second}, Config: &tls.Config{RootCAs: acme.Roots, ServerName: console}}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber, nil
}

// A certificate is issued for real, its key and the account's are nowhere in clear, and a second gateway on the same database takes it
// without another order, as does the same one when it starts again.
func TestCertificateFromACME(t *testing.T) {
	dsn, bus, key := pgtest.New(t), natstest.New(t), filepath.Join(t.TempDir(), "key")
	put(t, key, []byte(keyring.New()+"\n"))
	same := map[string]string{"KUBEBYON_DATABASE_DSN": dsn, "KUBEBYON_NATS_URL": bus, "KUBEBYON_ENCRYPTION_KEY_FILE": key}
	listener, port := listening(t)
	acme := acmetest.Start(t, acmetest.Options{TLSPort: port})
	w := start(t, ordering(t, listener, acme.URL, acme.CA, same))
	var serial *big.Int
	w.eventually(func() bool { var err error; serial, err = w.verified(t, acme, w.secure); return err == nil })
	if acme.Orders() != 1 {
		t.Fatalf("%d orders", acme.Orders())
	}
	// What else asks for the protocol of challenges gets nothing.
	for _, name := range []string{console, "other.example.com", ""} {
		if conn, err := w.dialTLS(nil, &tls.Config{ServerName: name, InsecureSkipVerify: true, NextProtos: []string{"acme-tls/1"}}); err == nil { //nolint:gosec // it is refused
			_ = conn.Close()
			t.Errorf("a challenge for %q is answered", name)
		}
	}

	second, _ := listening(t)
	other := prepare(t, withoutServices, ordering(t, second, acme.URL, acme.CA, same))
	var got *big.Int
	other.eventually(func() bool { var err error; got, err = other.verified(t, acme, other.secure); return err == nil })
	if got.Cmp(serial) != 0 || acme.Orders() != 1 {
		t.Errorf("the second gateway has %x, the first %x, after %d orders", got, serial, acme.Orders())
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	third, _ := listening(t)
	again := prepare(t, withoutServices, ordering(t, third, acme.URL, acme.CA, same))
	again.eventually(func() bool {
		got, err := again.verified(t, acme, again.secure)
		return err == nil && got.Cmp(serial) == 0
	})
	if acme.Orders() != 1 {
		t.Errorf("%d orders", acme.Orders())
	}

	rows := dump(t, dsn)
	if !strings.Contains(rows, "/"+console+".key") || !strings.Contains(rows, "/users/operator@example.com/") {
		t.Fatalf("the dump is not what this test takes it for:\n%.3000s", rows)
	}
	plain := []string{"PRIVATE KEY", "BEGIN", "\"status\"", "keyAuthorization"}
	for _, text := range plain {
		for where, said := range map[string]string{"the database": rows, "the log": w.log.String() + other.log.String() + again.log.String()} {
			if strings.Contains(said, text) || strings.Contains(said, fmt.Sprintf("%x", text)) {
				t.Errorf("%q is in %s", text, where)
			}
		}
	}
}

// A certificate is renewed before it expires, and one that was renewed elsewhere is taken over.
func TestCertificateIsRenewed(t *testing.T) {
	dsn, bus, key := pgtest.New(t), natstest.New(t), filepath.Join(t.TempDir(), "key")
	put(t, key, []byte(keyring.New()+"\n"))
	same := map[string]string{"KUBEBYON_DATABASE_DSN": dsn, "KUBEBYON_NATS_URL": bus, "KUBEBYON_ENCRYPTION_KEY_FILE": key}
	listener, port := listening(t)
	acme := acmetest.Start(t, acmetest.Options{TLSPort: port, Life: 12 * time.Second})
	w := prepare(t, withoutServices, ordering(t, listener, acme.URL, acme.CA, same))
	second, _ := listening(t)
	other := prepare(t, withoutServices, ordering(t, second, acme.URL, acme.CA, same))
	seen := map[*world]map[string]bool{w: {}, other: {}}
	w.eventually(func() bool { _, err := w.verified(t, acme, w.secure); return err == nil })
	for deadline := time.Now().Add(2 * time.Minute); len(seen[w]) < 2 || len(seen[other]) < 2; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d and %d certificates: %s", len(seen[w]), len(seen[other]), w.log)
		}
		for gateway, serials := range seen {
			if serial, err := gateway.verified(t, acme, gateway.secure); err == nil {
				serials[serial.String()] = true
			}
		}
	}
	for serial := range seen[other] {
		if len(seen[w]) == 2 && len(seen[other]) == 2 && !seen[w][serial] {
			t.Errorf("the second gateway has %s, the first %v", serial, seen[w])
		}
	}
}

// While the ACME server is away the API is served without TLS, the log says what is wrong, and it is tried again until it works.
func TestACMEServerDownAtTheStart(t *testing.T) {
	listener, port := listening(t)
	address, self := fmt.Sprintf("127.0.0.1:%d", freePort(t)), acmetest.NewIdentity(t)
	w := start(t, ordering(t, listener, "https://"+address+"/dir", self.CA, nil))
	w.call("GET", settings, "", "").expect(t, 200, "")
	w.eventually(func() bool {
		log := w.log.String()
		return strings.Contains(log, "there is no certificate yet: the ACME server gave none") && strings.Contains(log, address) && strings.Contains(log, "again_in=")
	})
	if _, err := w.dialTLS(nil, &tls.Config{ServerName: console, InsecureSkipVerify: true}); err == nil { //nolint:gosec // there is nothing to verify
		t.Error("a handshake succeeds without a certificate")
	}
	acme := acmetest.Start(t, acmetest.Options{Addr: address, TLSPort: port, Self: self})
	w.eventually(func() bool { _, err := w.verified(t, acme, w.secure); return err == nil })
}

// An ACME server that the operator's file does not know is told nothing.
func TestACMEServerOfAnotherAuthority(t *testing.T) {
	listener, port := listening(t)
	acme := acmetest.Start(t, acmetest.Options{TLSPort: port})
	w := start(t, ordering(t, listener, acme.URL, newAuthority(t).pem, nil))
	w.eventually(func() bool { return strings.Contains(w.log.String(), "certificate signed by unknown authority") })
	w.call("GET", settings, "", "").expect(t, 200, "")
	if acme.Orders() != 0 {
		t.Errorf("%d orders", acme.Orders())
	}
}

// A proof that fails is the operator's to mend, and costs the server's patience: it is tried again after minutes, and the log has its reason.
func TestACMEServerFindsNobody(t *testing.T) {
	listener, _ := listening(t)
	acme := acmetest.Start(t, acmetest.Options{TLSPort: freePort(t)})
	w := start(t, ordering(t, listener, acme.URL, acme.CA, nil))
	w.eventually(func() bool {
		log := w.log.String()
		return strings.Contains(log, "again_in=2m0s") && strings.Contains(log, "urn:ietf:params:acme:error:")
	})
	w.call("GET", settings, "", "").expect(t, 200, "")
	if acme.Orders() != 0 {
		t.Errorf("%d orders", acme.Orders())
	}
}

// One replica orders, and another one, in a process of its own, answers the ACME server: what it needs for that is in the database.
func TestChallengeReachesAnotherReplica(t *testing.T) {
	dsn, bus, key := pgtest.New(t), natstest.New(t), filepath.Join(t.TempDir(), "key")
	put(t, key, []byte(keyring.New()+"\n"))
	same := map[string]string{"KUBEBYON_DATABASE_DSN": dsn, "KUBEBYON_NATS_URL": bus, "KUBEBYON_ENCRYPTION_KEY_FILE": key}
	port := freePort(t)
	acme := acmetest.Start(t, acmetest.Options{TLSPort: port})
	release := acme.Hold()
	defer release()
	listener, _ := listening(t)
	w := prepare(t, withoutServices, ordering(t, listener, acme.URL, acme.CA, same))
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	w.eventually(func() bool {
		var n int
		err := conn.QueryRow(t.Context(), `select count(*) from certificate_files where path like '%/challenge_tokens/%'`).Scan(&n)
		return err == nil && n == 1
	})

	env := map[string]string{asProcess: "1", "KUBEBYON_HTTP_ADDR": "127.0.0.1:0"}
	ordering(t, nil, acme.URL, acme.CA, same)(env, &world{})
	env["KUBEBYON_HTTPS_ADDR"] = fmt.Sprintf("127.0.0.1:%d", port)
	log := &buffer{}
	other := exec.CommandContext(t.Context(), os.Args[0])
	other.Stderr, other.Stdout, other.Env = log, log, []string{"PATH=" + os.Getenv("PATH")}
	for name, value := range env {
		other.Env = append(other.Env, name+"="+value)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Process.Signal(syscall.SIGTERM)
		if err := other.Wait(); err != nil {
			t.Errorf("%v: %s", err, log)
		}
	}()
	w.eventually(func() bool { return strings.Contains(log.String(), "identity ready") })
	release()
	var serial *big.Int
	w.eventually(func() bool { serial, err = w.verified(t, acme, w.secure); return err == nil })
	w.eventually(func() bool {
		got, err := w.verified(t, acme, fmt.Sprintf("127.0.0.1:%d", port))
		return err == nil && got.Cmp(serial) == 0
	})
	if acme.Orders() != 1 {
		t.Errorf("%d orders", acme.Orders())
	}
}
