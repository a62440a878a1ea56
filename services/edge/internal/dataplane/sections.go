package dataplane

import (
	"slices"
	"strings"
)

// sectionKeywords begin a section of haproxy.cfg. One that is missing here would be taken for a line of the section before it: the list
// holds those of every release up to 3.2.
var sectionKeywords = map[string]bool{
	"global": true, "defaults": true, "frontend": true, "backend": true, "listen": true, "peers": true, "mailers": true,
	"userlist": true, "resolvers": true, "program": true, "cache": true, "http-errors": true, "ring": true, "log-forward": true,
	"log-profile": true, "fcgi-app": true, "crt-store": true, "traces": true, "acme": true, "healthcheck": true,
}

// proxies are the sections that a defaults section before them acts on, and defaults itself.
var proxies = map[string]bool{"defaults": true, "frontend": true, "backend": true, "listen": true}

// part is one section, or what stands before the first and after the last.
type part struct {
	lead   string   // blank lines and comments before the header: they belong to what follows
	words  []string // of the header; nil without one
	header string   // with its line end
	lines  []string // with their line ends
	inside bool     // the header stands between .if and .endif
}

func (p *part) key() string {
	if len(p.words) < 2 {
		return ""
	}
	return p.words[0] + " " + p.words[1]
}

// split cuts a configuration into its parts. Joined again they are the same bytes.
func split(text string) []part {
	var (
		parts = []part{{}}
		lead  strings.Builder
		depth int
	)
	for line := range strings.Lines(text) {
		words := wordsOf(line)
		if len(words) == 0 {
			lead.WriteString(line)
			continue
		}
		switch {
		case sectionKeywords[words[0]]:
			parts = append(parts, part{lead: lead.String(), words: words, header: line, inside: depth > 0})
			lead.Reset()
			continue
		case words[0] == ".if":
			depth++
		case words[0] == ".endif":
			depth--
		}
		last := &parts[len(parts)-1]
		for comment := range strings.Lines(lead.String()) {
			last.lines = append(last.lines, comment)
		}
		lead.Reset()
		last.lines = append(last.lines, line)
	}
	if lead.Len() > 0 {
		parts = append(parts, part{lead: lead.String()})
	}
	return parts
}

// wordsOf reads one line as HAProxy does: quotes and backslashes are undone, a comment ends it.
func wordsOf(line string) []string {
	var (
		words []string
		word  strings.Builder
		begun bool
		quote byte
	)
	end := func() {
		if begun {
			words = append(words, word.String())
			word.Reset()
			begun = false
		}
	}
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c == '\n' || c == '\r' && quote == 0:
			end()
			return words
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote, begun = c, true
		case c == '\\' && quote != '\'' && i+1 < len(line) && line[i+1] != '\n':
			i++
			word.WriteByte(line[i])
			begun = true
		case quote == 0 && (c == ' ' || c == '\t'):
			end()
		case quote == 0 && c == '#':
			end()
			return words
		default:
			word.WriteByte(c)
			begun = true
		}
	}
	end()
	return words
}

// section is one of ours as it should be.
type section struct {
	header string
	lines  []string
}

func (s section) key() string {
	words := wordsOf(s.header)
	return words[0] + " " + words[1]
}

// render gives the text of sections; kept are the lines of others in our frontend.
func render(sections []section, kept []string) string {
	var b strings.Builder
	for i, s := range sections {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(s.header)
		b.WriteByte('\n')
		here := s.header == frontendHeader
		for _, line := range s.lines {
			if here && (strings.HasPrefix(line, "use_backend ") || strings.HasPrefix(line, "default_backend ")) {
				writeKept(&b, kept)
				here = false
			}
			b.WriteString("  ")
			b.WriteString(line)
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func writeKept(b *strings.Builder, kept []string) {
	for _, line := range kept {
		b.WriteString(line)
		if !strings.HasSuffix(line, "\n") {
			b.WriteByte('\n')
		}
	}
}

// merge puts our sections into somebody's configuration in place of those of ours that it has. All else stays byte for byte.
//
// Ours stand before everybody else's proxies, with an empty defaults section at their end: a proxy that names no defaults
// takes the ones that stand last before it, and these must not become ours.
func merge(text string, sections []section) string {
	parts := split(text)
	var (
		kept   []string
		pieces []string
		at     = -1 // the piece that ours go before
	)
	for i := range parts {
		p := &parts[i]
		if isOurs(p.words) {
			if strings.TrimSpace(p.lead) != "" {
				pieces = append(pieces, p.lead)
			}
			kept = append(kept, keptOf(p)...)
			pieces = append(pieces, directives(p)...)
			continue
		}
		if at < 0 && p.words != nil && proxies[p.words[0]] && !p.inside {
			at = len(pieces)
		}
		pieces = append(pieces, p.lead+p.header+strings.Join(p.lines, ""))
	}
	if len(sections) == 0 {
		return strings.Join(pieces, "")
	}
	if at < 0 {
		at = len(pieces)
	}
	before, after := strings.Join(pieces[:at], ""), strings.Join(pieces[at:], "")
	if before == "" { // the version that the Data Plane API writes is the first thing in the file
		n := metadata(after)
		before, after = after[:n], after[n:]
	}
	if before != "" && !strings.HasSuffix(before, "\n") {
		before += "\n"
	}
	if before != "" && !endsBlank(before) {
		before += "\n"
	}
	if after != "" && !beginsBlank(after) {
		after = "\n" + after
	}
	if after != "" && !strings.HasSuffix(after, "\n") {
		after += "\n" // HAProxy takes a last line without an end for a file cut in half
	}
	return before + render(sections, kept) + after
}

// metadata is the length of the lines at the top that are the API's own.
func metadata(text string) int {
	n := 0
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "# _") {
			break
		}
		n += len(line)
	}
	return n
}

func endsBlank(text string) bool {
	text = strings.TrimSuffix(text, "\n")
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:]) == ""
}

func beginsBlank(text string) bool {
	line, _, found := strings.Cut(text, "\n")
	return found && strings.TrimSpace(line) == ""
}

// directives are the conditions inside a section of ours: their other half may stand outside.
func directives(p *part) []string {
	var out []string
	for _, line := range p.lines {
		if words := wordsOf(line); len(words) > 0 && strings.HasPrefix(words[0], ".") {
			if !strings.HasSuffix(line, "\n") {
				line += "\n"
			}
			out = append(out, line)
		}
	}
	return out
}

// keptOf are the lines of others in our frontend.
func keptOf(p *part) []string {
	if p.key() != "frontend "+frontendName {
		return nil
	}
	var out []string
	for _, line := range p.lines {
		if isForeignRule(wordsOf(line)) {
			out = append(out, line)
		}
	}
	return out
}

// isForeignRule tells the lines that others may add to our frontend from ours.
func isForeignRule(words []string) bool {
	if len(words) < 2 {
		return false
	}
	switch words[0] {
	case "acl":
		return true
	case "use_backend":
		return !isOurBackend(words[1]) && !strings.Contains(words[1], ","+rejectName+")")
	}
	return false
}

// canonical is a section's lines without what the Data Plane API changes when it writes them: spaces, comments and the order of
// lines whose order means nothing.
func canonical(lines []string) []string {
	var ordered, free []string
	for _, line := range lines {
		words := wordsOf(line)
		if len(words) == 0 {
			continue
		}
		if words[0] == "server" && len(words) > 2 {
			words = slices.Clone(words)
			words[2] = addressOf(words[2])
		}
		line = strings.Join(words, " ")
		switch words[0] {
		case "tcp-request", "use_backend", "acl":
			ordered = append(ordered, line)
		default:
			free = append(free, line)
		}
	}
	slices.Sort(free)
	return append(free, ordered...)
}
