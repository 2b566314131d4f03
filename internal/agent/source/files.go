package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/aether-federation/aether/internal/agent/state"
	"github.com/aether-federation/aether/registry"
)

const (
	// settle is how long files must be left alone before they are read: who writes
	// one does so in several steps.
	settle = 200 * time.Millisecond
	// DefaultPoll is how often files are read without being told of a change: not
	// every file system tells.
	DefaultPoll = 30 * time.Second
	// maxFile is the largest file that is read.
	maxFile = 16 << 20
	// filesState is the name of the state with the last valid content of each file.
	filesState = "files"
)

// FilesConfig says which files are read.
type FilesConfig struct {
	// Paths of YAML files, and of directories whose *.yaml and *.yml files are read.
	Paths    []string
	Defaults Defaults
	// State, unless it is the zero Dir, keeps the last valid content of each file
	// over a restart.
	State state.Dir
	// Poll; 0: DefaultPoll.
	Poll time.Duration
	Log  *slog.Logger
}

// Files is a Source: YAML files. A file that becomes invalid, empty or vanishes
// keeps its last valid content, until it is valid again or another file declares
// what it did. One that said `services: []` may go.
type Files struct {
	cfg  FilesConfig
	held map[string]held
	// known: see Read.
	known bool
	// unsaved: what is held is not remembered over a restart.
	unsaved bool
}

// held is what is known of one file.
type held struct {
	text     string
	declared []Declared
}

// NewFiles returns a Files that has read nothing yet.
func NewFiles(cfg FilesConfig) *Files {
	cfg.Paths = slices.Clone(cfg.Paths)
	if cfg.Poll == 0 {
		cfg.Poll = DefaultPoll
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	for i, p := range cfg.Paths {
		cfg.Paths[i] = filepath.Clean(p)
	}
	return &Files{cfg: cfg, held: map[string]held{}}
}

// Run implements [Source].
func (f *Files) Run(ctx context.Context, tell func(State)) error {
	f.restore()
	// Without a watcher changes are found by polling alone.
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		f.cfg.Log.Warn("changes of files are found by polling alone", "error", err)
		watcher = &fsnotify.Watcher{}
	} else {
		defer func() { _ = watcher.Close() }() // nothing is lost with it
	}
	poll := time.NewTicker(f.cfg.Poll)
	defer poll.Stop()
	for {
		f.watch(watcher)
		tell(f.Read())
		if !awaitChange(ctx, watcher, poll.C) {
			return nil
		}
	}
}

// awaitChange returns once files have changed and been left alone, or it is time
// to look; false: ctx has ended.
func awaitChange(ctx context.Context, w *fsnotify.Watcher, poll <-chan time.Time) bool {
	var quiet <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return false
		case <-w.Events:
			quiet = time.After(settle)
		case <-w.Errors: // an overflow: look
			quiet = time.After(settle)
		case <-quiet:
			return true
		case <-poll:
			if quiet == nil {
				return true
			}
		}
	}
}

// watch watches the directories that the files are in: whoever replaces a file
// makes a new one.
func (f *Files) watch(w *fsnotify.Watcher) {
	if w.Events == nil {
		return
	}
	for _, path := range f.cfg.Paths {
		dir := path
		if info, err := os.Stat(path); err != nil || !info.IsDir() {
			dir = filepath.Dir(path)
		}
		if err := w.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			f.cfg.Log.Warn("a directory's changes are found by polling alone", "directory", dir, "error", err)
		}
	}
}

// Read reads all files once and returns what there is. It is known once every file
// could be read, now or by an earlier agent: then one that is new and broken
// declares nothing yet, rather than something that was announced.
func (f *Files) Read() State {
	paths, problems := f.list()
	complete, changed := len(problems) == 0, !f.known
	states := make([]State, 0, len(paths))
	for _, path := range paths {
		was := f.held[path].text
		problems = append(problems, f.read(path)...)
		now, held := f.held[path]
		complete, changed = complete && held, changed || was != now.text
		states = append(states, State{Known: true, Declared: now.declared})
	}
	before := len(f.held)
	f.known = f.known || complete
	out := Merge(append(states, f.vanished(paths)...)...)
	out.Known, out.Problems = f.known, append(problems, out.Problems...)
	f.unsaved = f.unsaved || f.known && (changed || len(f.held) < before)
	if err := f.save(); err != nil {
		out.Problems = append(out.Problems, Problem{Where: "state", Text: fmt.Sprintf("what files hold is not remembered over a restart: %s", reason(err))})
	}
	return out
}

// list returns the files that there are, those of a directory by name.
func (f *Files) list() (paths []string, problems []Problem) {
	for _, path := range f.cfg.Paths {
		info, err := os.Stat(path)
		switch {
		case err != nil:
			if _, held := f.held[path]; !held {
				problems = append(problems, Problem{Where: path, Text: reason(err)})
			}
		case info.IsDir():
			entries, err := os.ReadDir(path)
			if err != nil {
				problems = append(problems, Problem{Where: path, Text: reason(err)})
			}
			for _, e := range entries {
				if isYAML(e.Name()) {
					paths = append(paths, filepath.Join(path, e.Name()))
				}
			}
		default:
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths), problems
}

// isYAML leaves out what editors keep beside a file.
func isYAML(name string) bool {
	ext := filepath.Ext(name)
	return (ext == ".yaml" || ext == ".yml") && !strings.HasPrefix(name, ".")
}

// read reads one file and keeps what it holds if that is valid.
func (f *Files) read(path string) []Problem {
	text, err := readFile(path)
	if err != nil {
		return []Problem{{Where: path, Text: reason(err)}}
	}
	if was, ok := f.held[path]; ok && was.text == text {
		return nil
	}
	declared, problems := Parse(path, []byte(text), f.cfg.Defaults)
	if len(problems) == 0 {
		f.held[path] = held{text: text, declared: declared}
	}
	return problems
}

func readFile(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", errors.New("is not a regular file") // a pipe would block whoever reads it
	}
	if info.Size() > maxFile {
		return "", fmt.Errorf("has %d bytes: %d are the most", info.Size(), maxFile)
	}
	b, err := os.ReadFile(path)
	return string(b), err
}

// vanished returns what files held that were there and are not, as far as no other
// declares it. Files of which nothing is left so are forgotten.
func (f *Files) vanished(present []string) (gone []State) {
	declared := map[registry.Key]bool{}
	for _, p := range present {
		for _, d := range f.held[p].declared {
			declared[d.Endpoint.Key] = true
		}
	}
	for _, path := range slices.Sorted(maps.Keys(f.held)) {
		if slices.Contains(present, path) {
			continue
		}
		left := slices.DeleteFunc(slices.Clone(f.held[path].declared), func(d Declared) bool { return declared[d.Endpoint.Key] })
		if len(left) == 0 {
			delete(f.held, path)
			continue
		}
		gone = append(gone, State{Known: true, Declared: left, Problems: []Problem{{Where: path, Text: fmt.Sprintf(
			"is gone, and its services stay (%d): to remove them write `services: []` there first, or declare them elsewhere", len(left))}}})
	}
	return gone
}

// reason is err without the path, which stands before it.
func reason(err error) string {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err.Error()
	}
	return err.Error()
}

// restore remembers what files held when the agent ran last. Where one of them is
// not understood any more, by another default or another version, the state is not
// known until the file is valid: what it declared stays registered.
func (f *Files) restore() {
	texts := map[string]string{}
	age, err := f.cfg.State.Load(filesState, &texts)
	if err != nil {
		f.cfg.Log.Warn("files are read without what they held before", "error", err)
	}
	f.known = age >= 0
	for path, text := range texts {
		if !f.covers(path) {
			continue // the configuration names others now
		}
		declared, problems := Parse(path, []byte(text), f.cfg.Defaults)
		if len(problems) > 0 {
			f.cfg.Log.Warn("what a file held before is not valid any more", "problem", problems[0])
			f.known = false
			continue
		}
		f.held[path] = held{text: text, declared: declared}
	}
}

func (f *Files) covers(path string) bool {
	return slices.Contains(f.cfg.Paths, path) || slices.Contains(f.cfg.Paths, filepath.Dir(path))
}

// save remembers what files hold, where that has changed or could not be saved before.
func (f *Files) save() error {
	if !f.unsaved {
		return nil
	}
	texts := make(map[string]string, len(f.held))
	for path, h := range f.held {
		texts[path] = h.text
	}
	err := f.cfg.State.Save(filesState, texts)
	f.unsaved = err != nil
	return err
}
