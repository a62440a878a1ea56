// Package runbook takes the commands out of a runbook, so that tests run what people will. It must never change a command: it
// puts a reader's own values into lines that say name=value, as the reader would.
package runbook

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// Block is a fenced piece of a document: what is to be run, and the word behind ```sh that says for whom.
type Block struct{ Kind, Text string }

// Blocks gives a document's blocks. One that is no sh is an error: every command is run, or says why not by its kind.
func Blocks(path string) ([]Block, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var found []Block
	open := false
	for line := range strings.Lines(string(text)) {
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence && open:
			open = false
		case isFence:
			kind, ok := strings.CutPrefix(strings.TrimSpace(fence), "sh")
			if !ok {
				return nil, fmt.Errorf("%s has a block that is no sh: %q", path, line)
			}
			open = true
			found = append(found, Block{Kind: strings.TrimSpace(kind)})
		case open:
			found[len(found)-1].Text += line
		}
	}
	return found, nil
}

const mark = "=== block "

// Script is one shell script of the blocks, with values in the places of the document's own. Each value must have one.
func Script(blocks []Block, values map[string]string) (string, error) {
	values = maps.Clone(values)
	var script strings.Builder
	script.WriteString("set -eu\n")
	for i, b := range blocks {
		fmt.Fprintf(&script, "echo '%s%d'\n", mark, i)
		for line := range strings.Lines(b.Text) {
			if name, _, ok := strings.Cut(line, "="); ok && values[name] != "" {
				line = fmt.Sprintf("%s='%s'\n", name, values[name])
				delete(values, name)
			}
			script.WriteString(line)
		}
	}
	if len(values) != 0 {
		return "", fmt.Errorf("the runbook asks for none of %v", slices.Sorted(maps.Keys(values)))
	}
	return script.String(), nil
}

// Said divides what Script printed: each block's output by its number.
func Said(output string) map[int]string {
	said := map[int]string{}
	for i, part := range strings.Split(output, mark)[1:] {
		_, text, _ := strings.Cut(part, "\n")
		said[i] = text
	}
	return said
}
