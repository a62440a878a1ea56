package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"regexp"
	"strings"

	"github.com/kubebyon/kubebyon/pkg/natsauth"
)

// role is a service's in PostgreSQL, and the name of its database: no service reads another's tables.
func role(owner string) string { return "kubebyon_" + owner }

// newPassLine is for any address of the server and any database on it.
func newPassLine(owner string) []byte {
	return []byte("*:*:*:" + role(owner) + ":" + rand.Text() + "\n")
}

// passwordOf reads a service's password from its pgpass; "" is none.
func passwordOf(owner string, text []byte) string {
	for line := range strings.Lines(string(text)) {
		fields := strings.Split(strings.TrimRight(line, "\r\n"), ":")
		if len(fields) == 5 && fields[3] == role(owner) && !strings.Contains(fields[4], `\`) {
			return fields[4]
		}
	}
	return ""
}

var verifierForm = regexp.MustCompile(`ALTER ROLE (kubebyon_[a-z]+) [A-Z ]*PASSWORD '(SCRAM-SHA-256\$4096:([A-Za-z0-9+/=]+)\$[^']+)'`)

// renderRoles writes SQL for psql that makes each service's role and database, also where some are there. It holds what PostgreSQL
// keeps of a password, from which nobody logs in. Salts are old's where they fit the passwords, so that the text stays the same.
func renderRoles(secrets state, old []byte) ([]byte, error) {
	before := map[string][]byte{}
	for _, match := range verifierForm.FindAllSubmatch(old, -1) {
		salt, err := base64.StdEncoding.DecodeString(string(match[3]))
		if err != nil {
			continue
		}
		before[string(match[1])] = salt
	}
	var b bytes.Buffer
	b.WriteString("-- The roles and databases of KubeBYON's services. Run it with psql as often as you like; it is written anew by the setup.\n")
	b.WriteString("\\set ON_ERROR_STOP on\n")
	for _, s := range natsauth.Services() {
		owner, name := string(s), role(string(s))
		password := passwordOf(owner, secrets[owner][passFile])
		salt := before[name]
		if len(salt) == 0 {
			salt = make([]byte, 16)
			_, _ = rand.Read(salt) // never fails
		}
		proof, err := verifier(password, salt)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "SELECT 'CREATE ROLE %[1]s' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '%[1]s') \\gexec\n", name)
		fmt.Fprintf(&b, "ALTER ROLE %s LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD '%s';\n", name, proof)
		fmt.Fprintf(&b, "SELECT 'CREATE DATABASE %[1]s OWNER %[1]s' WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = '%[1]s') \\gexec\n", name)
		fmt.Fprintf(&b, "REVOKE ALL ON DATABASE %s FROM PUBLIC;\n", name)
	}
	return b.Bytes(), nil
}

// verifier is what PostgreSQL stores of a password (RFC 5803), which proves a log-in without being one.
func verifier(password string, salt []byte) (string, error) {
	const rounds = 4096 // PostgreSQL's own
	salted, err := pbkdf2.Key(sha256.New, password, salt, rounds, sha256.Size)
	if err != nil {
		return "", fmt.Errorf("a role's password: %w", err)
	}
	sum := func(text string) []byte {
		m := hmac.New(sha256.New, salted)
		m.Write([]byte(text))
		return m.Sum(nil)
	}
	stored := sha256.Sum256(sum("Client Key"))
	text := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", rounds, text(salt), text(stored[:]), text(sum("Server Key"))), nil
}
