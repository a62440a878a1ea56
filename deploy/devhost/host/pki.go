package host

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// pki writes one run's certificates, keys and kubeconfigs into a folder. The first error stays and stops the rest.
type pki struct {
	dir    string
	server string // the API's URL, for kubeconfigs
	now    time.Time
	err    error
}

// authority is a certificate authority on disk as NAME.crt and NAME.key.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

// leaf is what a certificate says.
type leaf struct {
	user   string   // common name
	group  string   // organisation, empty for none
	server bool     // it serves under names; otherwise it is a client's
	names  []string // DNS names and IP addresses
}

func (p *pki) authority(name string) authority {
	t := &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign | x509.KeyUsageCRLSign}
	cert, key := p.sign(t, nil)
	p.write(name+".crt", cert)
	p.writeKey(name+".key", key)
	a := authority{key: key, pem: cert}
	if p.err == nil {
		block, _ := pem.Decode(cert)
		a.cert, p.err = x509.ParseCertificate(block.Bytes)
	}
	return a
}

// issue writes NAME.crt and NAME.key.
func (p *pki) issue(name string, ca authority, l leaf) (cert, key []byte) {
	t := &x509.Certificate{Subject: pkix.Name{CommonName: l.user}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if l.group != "" {
		t.Subject.Organization = []string{l.group}
	}
	if l.server {
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	for _, n := range l.names {
		if ip := net.ParseIP(n); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	cert, signer := p.sign(t, &ca)
	p.write(name+".crt", cert)
	return cert, p.writeKey(name+".key", signer)
}

// kubeconfig writes NAME.kubeconfig for a client.
func (p *pki) kubeconfig(name string, ca authority, l leaf) {
	cert, key := p.issue(name, ca, l)
	c := clientcmdapi.NewConfig()
	c.Clusters["host"] = &clientcmdapi.Cluster{Server: p.server, CertificateAuthorityData: ca.pem}
	c.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	c.Contexts["host"] = &clientcmdapi.Context{Cluster: "host", AuthInfo: name}
	c.CurrentContext = "host"
	if p.err != nil {
		return
	}
	b, err := clientcmd.Write(*c)
	if p.err = err; err == nil {
		p.write(name+".kubeconfig", b)
	}
}

// signingKey writes NAME.key and NAME.pub, for service account tokens.
func (p *pki) signingKey(name string) {
	key := p.newKey()
	p.writeKey(name+".key", key)
	if p.err != nil {
		return
	}
	b, err := x509.MarshalPKIXPublicKey(key.Public())
	if p.err = err; err == nil {
		p.write(name+".pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: b}))
	}
}

// sign makes a key and a certificate of it; without an authority it signs itself.
func (p *pki) sign(t *x509.Certificate, ca *authority) ([]byte, crypto.Signer) {
	key := p.newKey()
	if p.err != nil {
		return nil, nil
	}
	t.NotBefore, t.NotAfter = p.now.Add(-time.Hour), p.now.AddDate(10, 0, 0)
	if t.SerialNumber, p.err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); p.err != nil {
		return nil, nil
	}
	parent, signer := t, key
	if ca != nil {
		parent, signer = ca.cert, ca.key
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, key.Public(), signer)
	p.err = err
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key
}

func (p *pki) newKey() crypto.Signer {
	if p.err != nil {
		return nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	p.err = err
	return key
}

func (p *pki) writeKey(name string, key crypto.Signer) []byte {
	if p.err != nil {
		return nil
	}
	ec, _ := key.(*ecdsa.PrivateKey)
	der, err := x509.MarshalECPrivateKey(ec)
	if p.err = err; err != nil {
		return nil
	}
	b := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	p.write(name, b)
	return b
}

func (p *pki) write(name string, b []byte) {
	if p.err == nil {
		p.err = os.WriteFile(filepath.Join(p.dir, name), b, 0o600)
	}
}

// writePKI writes everything that the host cluster's processes present to each other.
func (h *Host) writePKI() error {
	n := h.Layout.Net
	p := &pki{dir: h.dir("pki"), server: h.server(), now: time.Now()}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return err
	}
	ca, front := p.authority("ca"), p.authority("front-proxy-ca")
	p.issue("apiserver", ca, leaf{user: "kube-apiserver", server: true, names: []string{"kubernetes", "kubernetes.default",
		"kubernetes.default.svc", "localhost", "127.0.0.1", n.Host().String(), serviceIP}})
	p.issue("kubelet-server", ca, leaf{user: "system:node:" + NodeName, group: "system:nodes", server: true, names: []string{NodeName, n.Host().String()}})
	p.issue("apiserver-kubelet-client", ca, leaf{user: "kube-apiserver-kubelet-client", group: "system:masters"})
	p.issue("front-proxy-client", front, leaf{user: "front-proxy-client"})
	p.signingKey("sa")
	p.kubeconfig("admin", ca, leaf{user: "kubernetes-admin", group: "system:masters"})
	p.kubeconfig("controller-manager", ca, leaf{user: "system:kube-controller-manager"})
	p.kubeconfig("scheduler", ca, leaf{user: "system:kube-scheduler"})
	p.kubeconfig("proxy", ca, leaf{user: "system:kube-proxy"})
	p.kubeconfig("kubelet", ca, leaf{user: "system:node:" + NodeName, group: "system:nodes"})
	return p.err
}
