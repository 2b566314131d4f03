package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/aether-federation/aether/internal/agent/probe"
	"github.com/aether-federation/aether/registry"
)

func TestNews(t *testing.T) {
	const h, u, d = registry.Healthy, registry.Unhealthy, registry.Draining
	a, b, c := program("a").Key, program("b").Key, program("c").Key
	type healths = map[registry.Key]registry.Health
	for name, c := range map[string]struct {
		before, now healths
		want        string
	}{
		"nothing":     {healths{a: h}, healths{a: h}, ""},
		"first":       {nil, healths{a: h, b: u}, "announcing endpoints=2 new=2 gone=0 begin_to_drain=0; unhealthy endpoint=b error=refused"},
		"ill":         {healths{a: h, b: h}, healths{a: h, b: u}, "unhealthy endpoint=b error=refused"},
		"well":        {healths{b: u}, healths{b: h}, "healthy again endpoint=b"},
		"drains":      {healths{a: h}, healths{a: d}, "announcing endpoints=1 new=0 gone=0 begin_to_drain=1"},
		"drained":     {healths{a: d}, healths{a: h}, ""},
		"gone":        {healths{a: h, b: h}, healths{c: h}, "announcing endpoints=1 new=1 gone=2 begin_to_drain=0"},
		"all at once": {healths{a: u, b: h}, healths{a: h, b: u}, "unhealthy endpoint=b error=refused; healthy again endpoint=a"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			verdicts := map[registry.Key]probe.Verdict{b: {Last: probe.Result{Err: errors.New("refused")}}}
			newsOf(c.before, c.now).say(slog.New(slog.NewTextHandler(&out, plain)), verdicts)
			if got := shorten(out.String()); got != c.want {
				t.Errorf("logged %s, want %s", got, c.want)
			}
		})
	}
}

// plain leaves out what a test does not compare.
var plain = &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
		return slog.Attr{}
	}
	return a
}}

func shorten(log string) string {
	return strings.TrimSuffix(strings.NewReplacer(
		"msg=", "", `"an endpoint is `, "", `" endpoint`, " endpoint", `"`, "", "/tcp at 10.0.0.7", "", "\n", "; ",
	).Replace(log), "; ")
}

// TestNewsIsBounded: a machine that takes everything down with it says so briefly.
func TestNewsIsBounded(t *testing.T) {
	before, now := map[registry.Key]registry.Health{}, map[registry.Key]registry.Health{}
	for i := range 1000 {
		k := program(fmt.Sprint("s", i)).Key
		before[k], now[k] = registry.Healthy, registry.Unhealthy
	}
	var out strings.Builder
	newsOf(before, now).say(slog.New(slog.NewTextHandler(&out, plain)), nil)
	if n := strings.Count(out.String(), "\n"); n != maxNews+1 || !strings.Contains(out.String(), "and 980 more") {
		t.Errorf("%d lines: %s", n, out.String())
	}
}
