package main

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kubebyon/kubebyon/pkg/natsauth"
)

// Owners besides the services of natsauth.
const (
	haproxy  = "haproxy"
	database = "postgres"
	bus      = "nats"
)

// The files.
const (
	seedFile      = "nats.nk"            // a service's key to NATS
	passFile      = "pgpass"             // a service's password to PostgreSQL, in libpq's form
	keyFile       = "encryption-key"     // what the gateway seals with
	dataPlaneFile = "dataplane-password" // what the edge and HAProxy's Data Plane API share
	caFile        = "nats-ca.crt"        // whom a service knows the NATS server by
	configFile    = "nats.conf"
	certFile      = "tls.crt"
	certKeyFile   = "tls.key"
	adminFile     = "password" // PostgreSQL's administrator
	rolesFile     = "init.sql"
)

// owners in the order that they are written in: what follows from others' secrets comes after them.
func owners() []string {
	all := []string{haproxy}
	for _, s := range natsauth.Services() {
		all = append(all, string(s))
	}
	return append(all, database, bus)
}

// known lists the files of an owner.
func known(owner string) []string {
	switch owner {
	case haproxy:
		return []string{dataPlaneFile}
	case database:
		return []string{adminFile, rolesFile}
	case bus:
		return []string{configFile, certFile, certKeyFile}
	}
	files := []string{seedFile, passFile, caFile}
	switch natsauth.Service(owner) {
	case natsauth.Gateway:
		files = append(files, keyFile)
	case natsauth.Edge:
		files = append(files, dataPlaneFile)
	}
	return files
}

// state is each owner's files.
type state map[string]map[string][]byte

func (s state) clone() state {
	out := state{}
	for _, owner := range owners() {
		out[owner] = maps.Clone(s[owner])
		if out[owner] == nil {
			out[owner] = map[string][]byte{}
		}
	}
	return out
}

// options are what the secrets depend on.
type options struct {
	natsHosts []string // names that the NATS server's certificate is for; none: no TLS
	natsDir   string   // where the NATS server sees its files
	now       time.Time
}

// complete adds to have what is missing. A secret that is there is never changed, and one that is no such thing is an error; what
// follows from the secrets (the NATS server's and PostgreSQL's users) is made anew where it does not fit them. Errors name
// the files and repeat nothing of them.
func complete(have state, o options) (state, error) {
	want := have.clone()
	var wrong []error
	bad := func(owner, file, what string) {
		wrong = append(wrong, fmt.Errorf("%s/%s %s: put back the one that was there, or delete it to have another made", owner, file, what))
	}
	fill := func(owner, file string, fresh func() ([]byte, error), check func([]byte) bool, what string) {
		text, ok := want[owner][file]
		if !ok {
			var err error
			if text, err = fresh(); err != nil {
				wrong = append(wrong, err)
				return
			}
			want[owner][file] = text
		}
		if !check(text) {
			bad(owner, file, what)
		}
	}

	fillDataPlane(want, fill, &wrong)
	fill(string(natsauth.Gateway), keyFile, newKey, notBlank, "is empty")
	fill(database, adminFile, newPassword, notBlank, "is empty")
	public := map[natsauth.Service]string{}
	for _, s := range natsauth.Services() {
		owner := string(s)
		fill(owner, seedFile, natsauth.NewSeed, func(seed []byte) bool {
			var err error
			public[s], err = natsauth.PublicKey(seed)
			return err == nil
		}, "is no seed of an nkey")
		fill(owner, passFile, func() ([]byte, error) { return newPassLine(owner), nil },
			func(line []byte) bool { return passwordOf(owner, line) != "" }, "has no line of "+role(owner))
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}

	roles, err := renderRoles(want, have[database][rolesFile])
	if err != nil {
		return nil, err
	}
	want[database][rolesFile] = roles
	var tls *natsauth.TLS
	if len(o.natsHosts) > 0 {
		if tls, err = fillTLS(want, o); err != nil {
			return nil, err
		}
	}
	config, err := natsauth.ServerConfig(public, tls)
	if err != nil {
		return nil, err
	}
	want[bus][configFile] = []byte(config)
	return want, nil
}

// fillDataPlane gives the edge and HAProxy one password: the one that either has.
func fillDataPlane(want state, fill func(string, string, func() ([]byte, error), func([]byte) bool, string), wrong *[]error) {
	edge := string(natsauth.Edge)
	of, has := want[edge][dataPlaneFile]
	fill(haproxy, dataPlaneFile, func() ([]byte, error) {
		if has {
			return of, nil
		}
		return newPassword()
	}, notBlank, "is empty")
	if !has {
		want[edge][dataPlaneFile] = want[haproxy][dataPlaneFile]
	} else if !bytes.Equal(of, want[haproxy][dataPlaneFile]) {
		*wrong = append(*wrong, fmt.Errorf("%s/%s and %s/%s differ: delete the one that HAProxy does not know", edge, dataPlaneFile, haproxy, dataPlaneFile))
	}
}

// changed lists an owner's files that are not as they were, in order.
func changed(owner string, have, want state) []string {
	var files []string
	for file, text := range want[owner] {
		if old, ok := have[owner][file]; !ok || !bytes.Equal(old, text) {
			files = append(files, file)
		}
	}
	slices.Sort(files)
	return files
}

func notBlank(text []byte) bool { return len(bytes.TrimSpace(text)) > 0 }

// newKey is what openssl rand -base64 32 prints.
func newKey() ([]byte, error) {
	raw := make([]byte, 32)
	_, _ = rand.Read(raw) // never fails
	return []byte(base64.StdEncoding.EncodeToString(raw) + "\n"), nil
}

// newPassword has 130 bits, and no letter that a URL or a line of pgpass would take for its own.
func newPassword() ([]byte, error) { return []byte(rand.Text() + "\n"), nil }
