package config_test

import (
	"crypto/tls"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aether-federation/aether/internal/certtest"
	"github.com/aether-federation/aether/internal/config"
)

func TestListenersAskForCertificates(t *testing.T) {
	ca := certtest.New(t)
	ca.Server("server")
	c := config.Registrar{TLSCert: ca.Cert("server"), TLSKey: ca.Key("server"), TLSClientCA: ca.CA()}
	for auth, want := range map[string]tls.ClientAuthType{"policy.yaml": tls.VerifyClientCertIfGiven, config.AuthOff: tls.RequireAndVerifyClientCert} {
		c.Auth = auth
		grpc, http, err := c.ListenerTLS(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		for listener, ask := range map[*tls.Config]tls.ClientAuthType{grpc: tls.RequireAndVerifyClientCert, http: want} {
			got, err := listener.GetConfigForClient(nil)
			if err != nil || got.ClientAuth != ask || got.ClientCAs == nil {
				t.Errorf("with --auth %s a listener asks for %v, want %v (%v)", auth, got.ClientAuth, ask, err)
			}
		}
	}
}

func TestSamplePolicyIsRead(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", "auth.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := config.ParseAccess(b); err != nil {
		t.Error(err)
	}
	if _, err := config.ParseAccess(nil); err == nil || !strings.Contains(err.Error(), "no rules") {
		t.Errorf("an empty file: %v, want that there are no rules", err)
	}
	for name, document := range map[string]string{"empty": "", "no rules": "rules: []", "an unknown key": "rule: []", "a role": "rules: [{role: x}]"} {
		if _, err := config.ParseAccess([]byte(document)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
