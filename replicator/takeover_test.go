package replicator

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	mirrorv1 "github.com/aether-federation/aether/api/aether/mirror/v1"
)

// TestTakeoverTranscript plays testdata/takeover.txt: paragraphs of a comment, what
// there is, and behind a line of dashes what is made of it.
func TestTakeoverTranscript(t *testing.T) {
	f, err := os.Open("testdata/takeover.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, title, cases := circumstances{}, "", 0
	answer := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		switch {
		case line == "":
			c, title, answer = circumstances{}, "", false
		case strings.HasPrefix(line, "#"):
			title += strings.TrimPrefix(line, "#")
		case line == "----":
			answer = true
		case answer:
			cases++
			if got := tell(choose(c)); got != line {
				t.Errorf("%s\n got: %s\nwant: %s", title, got, line)
			}
		default:
			read(t, &c, line)
		}
	}
	if cases < 10 {
		t.Errorf("%d cases were played", cases)
	}
}

func tell(p plan) string {
	switch {
	case p.reason == "":
		return fmt.Sprintf("adopt from %d", p.from)
	case p.broken:
		return "rebuild " + p.reason + ", hold a mass delete"
	default:
		return "rebuild " + p.reason
	}
}

// read enters one line of a transcript.
func read(t *testing.T, c *circumstances, line string) {
	t.Helper()
	words := strings.Fields(line)
	values := map[string]string{}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		values[name] = value
	}
	number := func(name string) int64 {
		if values[name] == "" {
			return 0
		}
		n, err := strconv.ParseInt(values[name], 10, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		return n
	}
	switch words[0] {
	case "owner":
		c.owner = &mirrorv1.Owner{OriginStore: values["origin"]}
	case "state":
		c.state = &mirrorv1.State{OriginStore: values["origin"], PeerStore: values["peer"], Checkpoint: number("checkpoint"), LeaseTtl: number("ttl")}
		c.state.Phase = map[string]mirrorv1.Phase{"syncing": mirrorv1.Phase_PHASE_SYNCING, "complete": mirrorv1.Phase_PHASE_COMPLETE}[words[1]]
	case "now":
		c.own, c.theirs, c.restored = values["origin"], values["peer"], values["restored"]
		c.head, c.ttl, c.ranges, c.dead = number("head"), number("ttl"), int(number("ranges")), int(number("dead"))
		c.repair = values["repair"] != ""
		c.witness = map[string]testimony{"confirmed": confirmed, "denies": denies, "forgotten": forgotten, "ahead": ahead}[values["witness"]]
	default:
		t.Fatalf("%q begins with no known word", line)
	}
}
