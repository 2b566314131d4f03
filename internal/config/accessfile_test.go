package config_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/aether-federation/aether/internal/access"
	"github.com/aether-federation/aether/internal/config"
)

func TestPolicyFollowsItsFile(t *testing.T) {
	c := config.Registrar{Auth: filepath.Join(t.TempDir(), "auth.yaml")}
	told := make(chan error)
	rule := func(who string) string { return "rules: [{role: reader, identities: ['cn:" + who + "']}]\n" }
	write(t, c.Auth, rule("one"))
	f, err := c.AccessFile(slog.New(slog.DiscardHandler), func(err error) { told <- err })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	reads := func(who string) bool {
		return f.Policy().Decide(access.Identity{Names: []string{"cn:" + who}}, access.Action{Need: access.Read}) == nil
	}
	expect := func(what string, valid, one, two bool) {
		t.Helper()
		select {
		case err := <-told:
			if (err == nil) != valid {
				t.Errorf("%s: told %v", what, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: not noticed", what)
		}
		if reads("one") != one || reads("two") != two {
			t.Errorf("%s: one may read: %v, two: %v", what, reads("one"), reads("two"))
		}
	}
	write(t, c.Auth, rule("two"))
	expect("another policy", true, false, true)
	write(t, c.Auth, "rules: [{role: king}]")
	expect("an invalid one", false, false, true)
	if err := os.Remove(c.Auth); err != nil {
		t.Fatal(err)
	}
	expect("none", false, false, true)
	write(t, c.Auth, rule("two"))
	expect("the former again", true, false, true)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestNoPolicyToFollow(t *testing.T) {
	f, err := config.Registrar{Auth: config.AuthOff}.AccessFile(slog.New(slog.DiscardHandler), nil)
	if err != nil || f.Policy() != nil || f.Run(t.Context()) != nil {
		t.Errorf("policy %v: %v", f.Policy(), err)
	}
	if _, err := (config.Registrar{Auth: "not-there.yaml"}).AccessFile(slog.New(slog.DiscardHandler), nil); err == nil {
		t.Error("a file that is not there was read")
	}
}
