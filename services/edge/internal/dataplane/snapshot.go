package dataplane

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/kubebyon/kubebyon/services/edge/internal/edge"
)

// snapshot is the configuration at one version.
type snapshot struct {
	version int64
	text    string
	parts   map[string]*part // ours, by their keys
	twice   bool             // one of ours is there more than once
	order   []string         // their keys
	rules   []presentRule    // the frontend's use_backend lines
	mapPath string           // of the map rule
	// apart tells that the API has something else in mind than the text: after a failed reload it restores the file and goes on
	// editing what failed, and an edit by hand it notices a little later. Single calls would undo what the text has; a whole text
	// brings both together again.
	apart bool
}

type presentRule struct {
	line string // canonical
	ours bool
}

func newSnapshot(version int64, text string) *snapshot {
	s := &snapshot{version: version, text: text, parts: map[string]*part{}, apart: versionIn(text) != version || editedByHand(text)}
	parts := split(text)
	for i := range parts {
		p := &parts[i]
		if !isOurs(p.words) {
			continue
		}
		if _, is := s.parts[p.key()]; is {
			s.twice = true
			continue
		}
		s.parts[p.key()] = p
		s.order = append(s.order, p.key())
	}
	front := s.parts["frontend "+frontendName]
	if front == nil {
		return s
	}
	for _, line := range front.lines {
		words := wordsOf(line)
		if len(words) < 2 || words[0] != "use_backend" {
			continue
		}
		r := presentRule{line: strings.Join(words, " "), ours: !isForeignRule(words)}
		s.rules = append(s.rules, r)
		if rest, ok := strings.CutSuffix(words[1], ","+rejectName+")]"); ok && r.ours {
			_, s.mapPath, _ = strings.Cut(rest, "map_str(")
		}
	}
	return s
}

// versionIn is what the comments at the top of the text say, 1 where they say nothing.
func versionIn(text string) int64 {
	for line := range strings.Lines(text[:metadata(text)]) {
		if value, ok := strings.CutPrefix(line, "# _version="); ok {
			if n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64); err == nil {
				return n
			}
		}
	}
	return 1
}

// editedByHand tells that the text is not what the API last wrote: it puts a digest of all the rest into the first line.
func editedByHand(text string) bool {
	first, rest, _ := strings.Cut(text, "\n")
	hash, ok := strings.CutPrefix(first, "# _md5hash=")
	if !ok {
		return false // the embedded one compares by itself
	}
	is := md5.Sum([]byte(rest)) //nolint:gosec // the API's choice
	return strings.TrimSpace(hash) != hex.EncodeToString(is[:])
}

func mapNameOf(file string) string {
	if file == "" {
		return ""
	}
	return path.Base(file)
}

// ours tells whether we were here before.
func (s *snapshot) ours() bool { return s.parts["frontend "+frontendName] != nil }

// sections are ours as they are there.
func (s *snapshot) sections() []section {
	var out []section
	for _, key := range s.order {
		p := s.parts[key]
		one := section{header: strings.Join(p.words, " ")}
		for _, line := range p.lines {
			words := wordsOf(line)
			if len(words) == 0 || strings.HasPrefix(words[0], ".") || key == "frontend "+frontendName && isForeignRule(words) {
				continue
			}
			one.lines = append(one.lines, strings.TrimSpace(line))
		}
		out = append(out, one)
	}
	return out
}

// digest of our sections, whoever wrote them in whatever order.
func (s *snapshot) digest() string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(s.parts)) {
		p := s.parts[key]
		b.WriteString(strings.Join(p.words, " ") + "\n" + strings.Join(canonical(p.lines), "\n") + "\n")
	}
	return sum(b.String())
}

func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}

// changes lead from a snapshot to a layout.
type changes struct {
	frame     bool // something besides routes: only the whole text will do
	addRules  []string
	dropRules []int                  // indexes among the frontend's rules, ascending
	add, drop []string               // backends
	addresses map[string]addressDiff // by backend
}

// addressDiff are the servers of one backend whose addresses alone changed.
type addressDiff []int

func (c *changes) nothing() bool {
	return !c.frame && len(c.addRules)+len(c.dropRules)+len(c.add)+len(c.drop)+len(c.addresses) == 0
}

// readdressed tells that nothing but a few addresses changed.
func (c *changes) readdressed() bool {
	return !c.frame && len(c.addRules)+len(c.dropRules)+len(c.add)+len(c.drop) == 0 && len(c.addresses) <= few
}

// small tells that a few calls do it.
func (c *changes) small() bool {
	return !c.frame && len(c.addRules) <= few && len(c.dropRules) <= few && len(c.add)+len(c.drop)+len(c.addresses) <= few
}

func compare(was *snapshot, want *layout, sections []section) *changes {
	c := &changes{frame: was.twice, addresses: map[string]addressDiff{}}
	wanted := make(map[string]bool, len(sections))
	for _, s := range sections {
		key := s.key()
		wanted[key] = true
		have := was.parts[key]
		name := strings.TrimPrefix(key, "backend ")
		if r, is := want.routes[name]; is && name != key {
			c.route(name, r, s, have)
			continue
		}
		if have == nil || !slices.Equal(have.words, wordsOf(s.header)) ||
			!slices.Equal(withoutRules(canonical(have.lines)), withoutRules(canonical(s.lines))) {
			c.frame = true
		}
	}
	for key := range was.parts {
		if wanted[key] {
			continue
		}
		if name, ok := strings.CutPrefix(key, "backend "+backendPrefix); ok {
			c.drop = append(c.drop, backendPrefix+name)
			continue
		}
		c.frame = true
	}
	slices.Sort(c.drop)
	c.rules(was, want, sections)
	return c
}

func withoutRules(lines []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(l string) bool {
		return strings.HasPrefix(l, "use_backend ") || strings.HasPrefix(l, "acl ")
	})
}

func (c *changes) route(name string, r edge.Route, s section, have *part) {
	if have == nil {
		c.add = append(c.add, name)
		return
	}
	is, should := canonical(have.lines), canonical(s.lines)
	if slices.Equal(have.words, wordsOf(s.header)) && slices.Equal(is, should) {
		return
	}
	if !slices.Equal(have.words, wordsOf(s.header)) || len(is) != len(should) {
		c.frame = true
		return
	}
	var moved addressDiff
	for i := range should {
		a, b := strings.Fields(is[i]), strings.Fields(should[i])
		if a[0] != "server" || len(a) < 3 || len(a) != len(b) || a[1] != b[1] || !slices.Equal(a[3:], b[3:]) {
			c.frame = true
			return
		}
		if a[2] == b[2] {
			continue
		}
		at := slices.IndexFunc(s.lines, func(l string) bool { return strings.HasPrefix(l, "server "+b[1]+" ") })
		if at < 0 || at >= len(r.Targets) {
			c.frame = true
			return
		}
		moved = append(moved, at)
	}
	c.addresses[name] = moved
}

// rules compares the switching. Others' rules stand before ours, in whatever order; among ours none matches what another does.
func (c *changes) rules(was *snapshot, want *layout, sections []section) {
	should := map[string]bool{}
	for _, s := range sections {
		if s.header != frontendHeader {
			continue
		}
		for _, l := range s.lines {
			if strings.HasPrefix(l, "use_backend ") {
				should[l] = true
			}
		}
	}
	ours := false
	found := map[string]bool{}
	for i, r := range was.rules {
		switch {
		case !r.ours:
			c.frame = c.frame || ours
			continue
		case !should[r.line] || found[r.line]:
			c.dropRules = append(c.dropRules, i)
		}
		ours, found[r.line] = true, true
	}
	for l := range should {
		if !found[l] {
			c.addRules = append(c.addRules, l)
		}
	}
	slices.Sort(c.addRules)
	if want.mode == modeMap && len(c.addRules)+len(c.dropRules) > 0 {
		c.frame = true
	}
}
