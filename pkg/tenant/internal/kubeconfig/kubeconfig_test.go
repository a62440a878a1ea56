package kubeconfig

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// pair gives a self-signed certificate and its key, in base64.
func pair(tb testing.TB) (cert, key string) {
	tb.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	tpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tpl, tpl, k.Public(), k)
	if err != nil {
		tb.Fatal(err)
	}
	kd, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		tb.Fatal(err)
	}
	enc := base64.StdEncoding.EncodeToString
	return enc(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), enc(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: kd}))
}

const template = `apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters: [{name: a, cluster: {CLUSTER}}]
users: [{name: a, user: {USER}}]
`

func text(cluster, user string) string {
	return strings.NewReplacer("CLUSTER", cluster, "USER", user).Replace(template)
}

func TestParse(t *testing.T) {
	cert, key := pair(t)
	_, otherKey := pair(t)
	ca := "certificate-authority-data: " + cert
	server := ca + ", server: 'https://kube.example.com:6443'"
	token := "token: abc"
	enc := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

	for name, c := range map[string]struct{ cluster, user, wrong string }{
		"token":                       {server, token, ""},
		"pair":                        {server, "client-certificate-data: " + cert + ", client-key-data: " + key, ""},
		"extensions are left out":     {server + ", disable-compression: true, unknown: 1", token, ""},
		"server name":                 {server + ", tls-server-name: kubernetes", token, ""},
		"exec":                        {server, token + ", exec: {command: /bin/sh, apiVersion: client.authentication.k8s.io/v1}", "exec"},
		"auth-provider":               {server, token + ", auth-provider: {name: gcp}", "auth-provider"},
		"tokenFile":                   {server, token + ", tokenFile: /etc/shadow", "tokenFile"},
		"client-certificate":          {server, token + ", client-certificate: /etc/shadow", "client-certificate, the path"},
		"client-key":                  {server, token + ", client-key: /etc/shadow", "client-key, the path"},
		"username":                    {server, token + ", username: a, password: b", "username"},
		"act-as":                      {server, token + ", as: system:admin", "impersonation"},
		"act-as groups":               {server, token + ", as-groups: [x]", "impersonation"},
		"certificate-authority":       {server + ", certificate-authority: /etc/x", token, "certificate-authority, the path"},
		"proxy-url":                   {server + ", proxy-url: 'http://evil'", token, "proxy-url"},
		"insecure":                    {server + ", insecure-skip-tls-verify: true", token, "insecure-skip-tls-verify"},
		"no CA":                       {"server: 'https://kube.example.com'", token, "no certificate-authority-data"},
		"CA is text":                  {"server: 'https://kube.example.com', certificate-authority-data: " + enc("x"), token, "is not PEM"},
		"CA is a key":                 {"server: 'https://kube.example.com', certificate-authority-data: " + key, token, "no certificate"},
		"CA is junk in PEM":           {"server: 'https://kube.example.com', certificate-authority-data: " + enc("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), token, "cannot be read"},
		"no credential":               {server, "", "neither"},
		"half a pair":                 {server, "client-certificate-data: " + cert, "without the other"},
		"a pair that is none":         {server, "client-certificate-data: " + cert + ", client-key-data: " + otherKey, "not a pair"},
		"token with a line break":     {server, `token: "a\r\nb"`, "control characters"},
		"token too large":             {server, "token: " + strings.Repeat("a", maxToken+1), "token is too large"},
		"server name with a blank":    {server + ", tls-server-name: 'a b'", token, "tls-server-name"},
		"http":                        {ca + ", server: 'http://kube.example.com'", token, "not an https"},
		"no server":                   {ca, token, "not an https"},
		"user info":                   {ca + ", server: 'https://u:p@kube.example.com'", token, "more than"},
		"a path":                      {ca + ", server: 'https://kube.example.com/x'", token, "more than"},
		"a query":                     {ca + ", server: 'https://kube.example.com?x'", token, "more than"},
		"port 0":                      {ca + ", server: 'https://kube.example.com:0'", token, "port"},
		"metadata service":            {ca + ", server: 'https://169.254.169.254'", token, "neither"},
		"metadata service, in IPv6":   {ca + ", server: 'https://[::ffff:169.254.169.254]'", token, "neither"},
		"any address":                 {ca + ", server: 'https://0.0.0.0:6443'", token, "neither"},
		"a number":                    {ca + ", server: 'https://2130706433'", token, "neither"},
		"template syntax in a server": {ca + ", server: 'https://$(id)'", token, "its server"},
	} {
		t.Run(name, func(t *testing.T) {
			k, err := Parse([]byte(text(c.cluster, c.user)))
			if c.wrong == "" {
				if err != nil {
					t.Fatal(err)
				}
				if k.Server != "https://kube.example.com:6443" || k.Local {
					t.Fatalf("%+v", k)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Fatalf("got %v, want …%s…", err, c.wrong)
			}
			if strings.Contains(err.Error(), "shadow") || strings.Contains(err.Error(), "evil") {
				t.Errorf("a value is repeated: %v", err)
			}
		})
	}
	for _, s := range []string{"https://localhost:8443", "https://LOCALHOST:8443/", "https://127.0.0.1:8443", "https://[::1]:8443", "https://127.9.9.9"} {
		k, err := Parse([]byte(text(ca+", server: '"+s+"'", token)))
		if err != nil || !k.Local {
			t.Errorf("%s: %+v, %v", s, k, err)
		}
	}
	// What is refused counts in entries that the current context does not use, too.
	bad := strings.Replace(text(server, token), "users: [", "users: [{name: b, user: {exec: {command: x}}}, ", 1)
	if _, err := Parse([]byte(bad)); err == nil || !strings.Contains(err.Error(), "exec") {
		t.Errorf("got %v", err)
	}
	for name, data := range map[string]string{
		"empty": "", "null": "null", "list": "[]", "binary": "\x00\xff", "too large": strings.Repeat("#", maxKubeconfig+1),
		"no context":     strings.Replace(text(server, token), "current-context: a", "current-context: z", 1),
		"no cluster":     strings.Replace(text(server, token), "cluster: a,", "cluster: z,", 1),
		"billion laughs": "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d]\n",
	} {
		if _, err := Parse([]byte(data)); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

// FuzzParse holds what must be true of everything that Parse accepts. In its inputs $C and $K stand for a certificate and
// its key: inputs stay short, and what a run finds means the same to the next one.
func FuzzParse(f *testing.F) {
	cert, key := pair(f)
	const ca = "certificate-authority-data: $C"
	f.Add([]byte(text(ca+", server: 'https://localhost:8443'", "client-certificate-data: $C, client-key-data: $K")))
	f.Add([]byte(text(ca+", server: 'https://[2001:db8::1]:6443', tls-server-name: kubernetes", "token: abc")))
	f.Add([]byte(text(ca+", server: 'https://h', proxy-url: 'http://p'", "token: abc, exec: {command: sh}")))
	f.Add([]byte("{}"))
	expand := strings.NewReplacer("$C", cert, "$K", key)
	f.Fuzz(func(t *testing.T, data []byte) {
		data = []byte(expand.Replace(string(data)))
		k, err := Parse(data)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Fatalf("an error of several lines: %q", err)
			}
			return
		}
		if k.Local {
			k.Server = "https://127.0.0.1:1"
		}
		out, err := k.Write("t")
		if err != nil {
			t.Fatal(err)
		}
		for _, never := range []string{"exec:", "auth-provider", "tokenFile", "proxy-url", "insecure", "client-certificate:", "client-key:", "certificate-authority:"} {
			if bytes.Contains(out, []byte(never)) {
				t.Fatalf("%s came through: %s", never, out)
			}
		}
		c, err := clientcmd.RESTConfigFromKubeConfig(out)
		if err != nil {
			t.Fatal(err)
		}
		if c.ExecProvider != nil || c.AuthProvider != nil || c.BearerTokenFile != "" || c.Insecure || !strings.HasPrefix(c.Host, "https://") ||
			len(c.CAData) == 0 || c.CAFile != "" || c.CertFile != "" || c.KeyFile != "" {
			t.Fatalf("%+v", c)
		}
		again, err := Parse(out)
		if err != nil {
			t.Fatalf("what we write is not what we take: %v", err)
		}
		if again.Token != k.Token || !bytes.Equal(again.CA, k.CA) {
			t.Fatal("it changed")
		}
	})
}
