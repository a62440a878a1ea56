package openid

// maxReturn bounds where to return to: it travels in the flow's cookie.
const maxReturn = 1024

// LocalPath says whether text, as a redirect, stays on this very origin whatever browser reads it: an absolute path of printable
// ASCII. A second slash, or a backslash that browsers take for one, would begin another host's name; browsers drop tabs and
// line ends before they look.
func LocalPath(text string) bool {
	if text == "" || len(text) > maxReturn || text[0] != '/' || (len(text) > 1 && text[1] == '/') {
		return false
	}
	for _, b := range []byte(text) {
		if b <= ' ' || b > '~' || b == '\\' {
			return false
		}
	}
	return true
}
