package config_test

import (
	"bytes"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aether-federation/aether/internal/certtest"
	"github.com/aether-federation/aether/internal/config"
)

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCredentialsOfPeers(t *testing.T) {
	ca := certtest.New(t)
	ca.Client("a")
	ca.Client("other")
	secret := write(t, filepath.Join(t.TempDir(), "password"), "secret\n")
	empty := write(t, filepath.Join(t.TempDir(), "empty"), "")
	tests := []struct {
		name   string
		change func(*config.Registrar)
		want   string
	}{
		{"everything", func(c *config.Registrar) {
			c.PeerEtcdCA, c.PeerEtcdCert, c.PeerEtcdKey = []string{"b=" + ca.CA()}, []string{"b=" + ca.Cert("a")}, []string{"b=" + ca.Key("a")}
			c.PeerEtcdServerName, c.PeerEtcdUser, c.PeerEtcdPasswordFile = []string{"b=etcd"}, []string{"b=u"}, []string{"b=" + secret}
		}, ""},
		{"a region that is no peer", func(c *config.Registrar) { c.PeerEtcdCA = []string{"x=" + ca.CA()} }, `region "x" is no peer`},
		{"no region", func(c *config.Registrar) { c.PeerEtcdCA = []string{ca.CA()} }, "<region>=<value>"},
		{"twice", func(c *config.Registrar) { c.PeerEtcdUser = []string{"b=u", "b=v"} }, "twice"},
		{"half a certificate", func(c *config.Registrar) { c.PeerEtcdCert = []string{"b=" + ca.Cert("a")} }, "go together"},
		{"another's key", func(c *config.Registrar) {
			c.PeerEtcdCert, c.PeerEtcdKey = []string{"b=" + ca.Cert("a")}, []string{"b=" + ca.Key("other")}
		}, "does not match"},
		{"no such file", func(c *config.Registrar) { c.PeerEtcdCA = []string{"b=/nowhere.pem"} }, "/nowhere.pem"},
		{"no certificate", func(c *config.Registrar) { c.PeerEtcdCA = []string{"b=" + secret} }, "no PEM certificate"},
		{"no password", func(c *config.Registrar) { c.PeerEtcdUser = []string{"b=u"} }, "AETHER_PEER_B_PASSWORD"},
		{"an empty password", func(c *config.Registrar) {
			c.PeerEtcdUser, c.PeerEtcdPasswordFile = []string{"b=u"}, []string{"b=" + empty}
		}, "is empty"},
		{"no user", func(c *config.Registrar) { c.PeerEtcdPasswordFile = []string{"b=" + secret} }, "no user"},
		{"one password for two", func(c *config.Registrar) {
			withPeers(c, "x-1=h:1", "x.1=h:2")
			c.PeerEtcdUser = []string{"x-1=u", "x.1=u"}
		}, "peers x-1 and x.1"},
		{"TLS in plain text", func(c *config.Registrar) {
			c.PeerEtcd, c.PeerEtcdCA = []string{"b=http://h:1"}, []string{"b=" + ca.CA()}
		}, "https://"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := config.Default()
			withPeers(&c, "b=h:1", "c=h:2")
			tt.change(&c)
			switch err := c.Validate(); {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%v, want an error that says %s", err, tt.want)
			}
		})
	}
}

// TestFlagsForAPeerOfTheFile: what a flag says of a peer wins over its entry.
func TestFlagsForAPeerOfTheFile(t *testing.T) {
	t.Setenv(config.PasswordVariable("eu-1"), "from the environment")
	c := config.Default()
	withPeers(&c)
	c.PeerList = []config.Peer{{Region: "eu-1", Endpoints: []string{"h:1"}, User: "file"}}
	c.PeerEtcdUser = []string{"eu-1=flag"}
	peers, err := c.Peers()
	if err != nil {
		t.Fatal(err)
	}
	now, err := peers[0].Credentials()
	if err != nil || now.Username != "flag" || now.Password != "from the environment" || now.TLS != nil {
		t.Errorf("credentials %+v, %v", now, err)
	}
	if v := config.PasswordVariable("eu-1"); v != "AETHER_PEER_EU_1_PASSWORD" {
		t.Errorf("the variable is %s", v)
	}
}

// TestCredentialsFollowTheirFiles: the version changes when what they hold does,
// and only then.
func TestCredentialsFollowTheirFiles(t *testing.T) {
	ca := certtest.New(t)
	ca.Client("a")
	secret := write(t, filepath.Join(t.TempDir(), "password"), "one")
	c := config.Default()
	withPeers(&c, "b=h:1")
	c.PeerEtcdCert, c.PeerEtcdKey = []string{"b=" + ca.Cert("a")}, []string{"b=" + ca.Key("a")}
	c.PeerEtcdUser, c.PeerEtcdPasswordFile = []string{"b=u"}, []string{"b=" + secret}
	peers, err := c.Peers()
	if err != nil {
		t.Fatal(err)
	}
	version := func() string {
		now, err := peers[0].Credentials()
		if err != nil {
			t.Fatal(err)
		}
		return now.Version
	}
	first := version()
	write(t, secret, "one")
	if version() != first {
		t.Error("the same content is another version")
	}
	write(t, secret, "two")
	second := version()
	ca.Client("a")
	if third := version(); second == first || third == second {
		t.Error("other content is the same version")
	}
	write(t, ca.Key("a"), "half")
	if _, err := peers[0].Credentials(); err == nil {
		t.Error("half a key was accepted")
	}
}

// TestListenerFollowsItsFiles: a certificate, and the authority of clients, that are
// replaced under a listener count for the next connection.
func TestListenerFollowsItsFiles(t *testing.T) {
	server, clients := certtest.New(t), certtest.New(t)
	server.Server("server")
	clients.Client("c")
	c := config.Default()
	c.TLSCert, c.TLSKey = server.Cert("server"), server.Key("server")
	c.TLSClientCA = filepath.Join(t.TempDir(), "clients.pem")
	copyFile(t, c.TLSClientCA, clients.CA())
	var log bytes.Buffer
	own, _, err := c.ListenerTLS(slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	with := func(authority *certtest.Authority) (serial string, refused error) {
		client := server.TLS("")
		client.Certificates = authority.TLS("c").Certificates
		client.ServerName = "127.0.0.1"
		return shake(t, own, client)
	}
	first, err := with(clients)
	if err != nil {
		t.Fatal(err)
	}
	server.Server("server")
	if second, err := with(clients); err != nil || second == first {
		t.Errorf("after a rotation: certificate %s, before %s; %v", second, first, err)
	}
	others := certtest.New(t)
	others.Client("c")
	if _, err := with(others); err == nil {
		t.Error("a client of another authority was accepted")
	}
	copyFile(t, c.TLSClientCA, others.CA())
	if _, err := with(others); err != nil {
		t.Errorf("a client of the new authority: %v", err)
	}
	write(t, c.TLSKey, "half")
	if _, err := with(others); err != nil || !strings.Contains(log.String(), "as it was") {
		t.Errorf("with half a key: %v, log %s", err, log.String())
	}
}

// connected returns both ends of a connection. Each may write while the other does,
// which a pipe does not let them.
func connected(t *testing.T) (here, there net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if here, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if there, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return here, there
}

// TestAgentFollowsItsFiles: the node's certificate and the registrars' authority are
// read again for each connection.
func TestAgentFollowsItsFiles(t *testing.T) {
	old, next, nodes := certtest.New(t), certtest.New(t), certtest.New(t)
	old.Server("server")
	next.Server("server")
	nodes.Client("n1")
	c := config.DefaultAgent()
	c.TLSCA, c.TLSCert, c.TLSKey = filepath.Join(t.TempDir(), "ca.pem"), nodes.Cert("n1"), nodes.Key("n1")
	copyFile(t, c.TLSCA, old.CA())
	now, err := c.RegistrarTLS(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	with := func(authority *certtest.Authority) (node string, refused error) {
		server := authority.TLS("server")
		server.ClientAuth = tls.RequireAnyClientCert
		server.VerifyConnection = func(s tls.ConnectionState) error {
			node = s.PeerCertificates[0].SerialNumber.String()
			return nil
		}
		client := now().Clone()
		client.ServerName = "127.0.0.1"
		_, refused = shake(t, server, client)
		return node, refused // by the server, which is told what the client thinks
	}
	first, err := with(old)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := with(next); err == nil {
		t.Error("a registrar of another authority was trusted")
	}
	nodes.Client("n1")
	copyFile(t, c.TLSCA, next.CA())
	if second, err := with(next); err != nil || second == first {
		t.Errorf("after the change: certificate %s, before %s; %v", second, first, err)
	}
	write(t, c.TLSCA, "half")
	if _, err := with(next); err != nil {
		t.Errorf("with half an authority: %v", err)
	}
}

func copyFile(t *testing.T, to, from string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	write(t, to, string(b))
}

// shake returns the serial number of what the server showed, and the error with
// which it refused the client.
func shake(t *testing.T, server, client *tls.Config) (serial string, refused error) {
	t.Helper()
	here, there := connected(t)
	ended := make(chan error, 1)
	go func() {
		conn := tls.Server(there, server)
		err := conn.Handshake()
		ended <- err
		_ = there.Close() // both ends are this test's
	}()
	conn := tls.Client(here, client)
	err := conn.Handshake()
	if err == nil {
		_, _ = conn.Read(make([]byte, 1)) // until the server has closed
		serial = conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	_ = here.Close()
	return serial, <-ended
}
