// Package kubeconfig takes what is safe from a kubeconfig that somebody else wrote: an address, a CA and a credential, all
// inline. It must never run, open or follow anything that the file names, nor put a value of it into an error. It stands
// apart from tenant so that its fuzz target builds without the Kubernetes clients.
package kubeconfig

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Limits of what a kubeconfig may hold: far above what control planes write, far below what hurts.
const (
	maxKubeconfig = 256 << 10
	maxCA         = 64 << 10
	maxPair       = 64 << 10
	maxToken      = 16 << 10
	maxEntries    = 16
)

// Kubeconfig is all that is taken from one.
type Kubeconfig struct {
	Server     string // https://host:port, "" where Local
	Local      bool   // it says localhost
	ServerName string // for TLS, where it is not Server's host
	CA         []byte // PEM
	Cert, Key  []byte // PEM, both or neither
	Token      string
}

// Parse takes the current context's cluster and user. Its errors complete "the kubeconfig cannot be used: …" and never
// repeat a value. What would run, read or redirect something is refused wherever in the file it stands: a file that
// carries it was not written by a control plane.
func Parse(data []byte) (*Kubeconfig, error) {
	if len(data) > maxKubeconfig {
		return nil, fmt.Errorf("it is over %d KiB", maxKubeconfig>>10)
	}
	c, err := clientcmd.Load(data)
	if err != nil {
		return nil, errors.New("it is not a kubeconfig in YAML")
	}
	if len(c.Clusters) > maxEntries || len(c.AuthInfos) > maxEntries || len(c.Contexts) > maxEntries {
		return nil, fmt.Errorf("it has more than %d entries", maxEntries)
	}
	for _, cluster := range c.Clusters {
		if what := refusedOfCluster(cluster); what != "" {
			return nil, refused(what)
		}
	}
	for _, user := range c.AuthInfos {
		if what := refusedOfUser(user); what != "" {
			return nil, refused(what)
		}
	}
	context, ok := c.Contexts[c.CurrentContext]
	if !ok || context == nil {
		return nil, errors.New("it has no current-context, or one that it lacks")
	}
	cluster, user := c.Clusters[context.Cluster], c.AuthInfos[context.AuthInfo]
	if cluster == nil || user == nil {
		return nil, errors.New("its current context names a cluster or a user that it lacks")
	}
	k := &Kubeconfig{CA: cluster.CertificateAuthorityData, Cert: user.ClientCertificateData, Key: user.ClientKeyData,
		Token: user.Token, ServerName: cluster.TLSServerName}
	if k.Server, k.Local, err = checkServer(cluster.Server); err != nil {
		return nil, err
	}
	if err := k.check(); err != nil {
		return nil, err
	}
	return k, nil
}

func refused(what string) error {
	return fmt.Errorf("it carries %s, which is never taken from a tenant's kubeconfig", what)
}

func refusedOfCluster(c *clientcmdapi.Cluster) string {
	switch {
	case c == nil:
		return "an empty cluster"
	case c.ProxyURL != "":
		return "proxy-url"
	case c.InsecureSkipTLSVerify:
		return "insecure-skip-tls-verify"
	case c.CertificateAuthority != "":
		return "certificate-authority, the path of a file"
	}
	return ""
}

func refusedOfUser(u *clientcmdapi.AuthInfo) string {
	switch {
	case u == nil:
		return "an empty user"
	case u.Exec != nil:
		return "exec"
	case u.AuthProvider != nil:
		return "auth-provider"
	case u.TokenFile != "":
		return "tokenFile, the path of a file"
	case u.ClientCertificate != "":
		return "client-certificate, the path of a file"
	case u.ClientKey != "":
		return "client-key, the path of a file"
	case u.Username != "" || u.Password != "":
		return "a username or password"
	case u.Impersonate != "" || u.ImpersonateUID != "" || len(u.ImpersonateGroups) > 0 || len(u.ImpersonateUserExtra) > 0:
		return "an impersonation"
	}
	return ""
}

func (k *Kubeconfig) check() error {
	if k.ServerName != "" && (len(k.ServerName) > 253 || !dnsName.MatchString(strings.ToLower(k.ServerName))) && !ValidHost(k.ServerName) {
		return errors.New("its tls-server-name is not a name")
	}
	if len(k.CA) == 0 {
		return errors.New("it has no certificate-authority-data")
	}
	if len(k.CA) > maxCA {
		return errors.New("its certificate-authority-data is too large")
	}
	if err := certificates(k.CA); err != nil {
		return fmt.Errorf("its certificate-authority-data %w", err)
	}
	if (len(k.Cert) == 0) != (len(k.Key) == 0) {
		return errors.New("it has one of client-certificate-data and client-key-data without the other")
	}
	if len(k.Cert) > 0 {
		if len(k.Cert)+len(k.Key) > maxPair {
			return errors.New("its client-certificate-data and client-key-data are too large")
		}
		if _, err := tls.X509KeyPair(k.Cert, k.Key); err != nil {
			return errors.New("its client-certificate-data and client-key-data are not a pair")
		}
	}
	if len(k.Token) > maxToken {
		return errors.New("its token is too large")
	}
	for _, r := range []byte(k.Token) {
		if r <= ' ' || r >= 0x7f {
			return errors.New("its token holds blanks or control characters")
		}
	}
	if len(k.Cert) == 0 && k.Token == "" {
		return errors.New("it has neither a client certificate nor a token")
	}
	return nil
}

// certificates accepts PEM with certificates and nothing else.
func certificates(data []byte) error {
	for n := 0; ; n++ {
		block, rest := pem.Decode(data)
		if block == nil {
			if n == 0 || len(bytes.TrimSpace(rest)) > 0 {
				return errors.New("is not PEM")
			}
			return nil
		}
		if block.Type != "CERTIFICATE" {
			return errors.New("holds something that is no certificate")
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return errors.New("holds a certificate that cannot be read")
		}
		data = rest
	}
}

// Write gives a kubeconfig of what was taken, named after the tenant.
func (k *Kubeconfig) Write(name string) ([]byte, error) {
	c := clientcmdapi.NewConfig()
	c.Clusters[name] = &clientcmdapi.Cluster{Server: k.Server, TLSServerName: k.ServerName, CertificateAuthorityData: k.CA}
	c.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: k.Cert, ClientKeyData: k.Key, Token: k.Token}
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	c.CurrentContext = name
	return clientcmd.Write(*c)
}
