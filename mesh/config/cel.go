package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// maxCELDepth bounds how deep a CEL expression may be nested.
const maxCELDepth = 64

// celToken matches the next token of a CEL expression, after spaces and comments.
var celToken = regexp.MustCompile(`^(?:` + strings.Join([]string{
	`(?:[rR][bB]?|[bB][rR]?)?(?:"""(?s:.*?)"""|'''(?s:.*?)''')`,
	`(?:[rR][bB]|[bB][rR]|[rR])(?:"[^"\n]*"|'[^'\n]*')`,
	`[bB]?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')`,
	`[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?`,
	`0x[0-9a-fA-F]+[uU]?|[0-9]+[uU]?`,
	`[A-Za-z_][A-Za-z0-9_]*`,
	`&&|\|\||<=|>=|==|!=|[-+*/%!<>?:.,()\[\]{}]`,
}, "|") + `)`)

var celSpace = regexp.MustCompile(`^(?:\s|//[^\n]*)+`)

// celReserved are the identifiers that CEL reserves.
var celReserved = []string{
	"as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "package", "namespace", "return", "var", "void", "while",
}

// celFunctions are the functions and macros that Envoy's CEL has. Envoy rejects a listener with any other one.
var celFunctions = []string{
	"size", "contains", "startsWith", "endsWith", "matches", "has", "all", "exists", "exists_one", "map", "filter",
	"int", "uint", "double", "bool", "string", "bytes", "type", "dyn", "timestamp", "duration",
	"getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getHours", "getMinutes", "getSeconds", "getMilliseconds",
}

// celProblem returns why a text is no expression of CEL that Envoy accepts; "" if it is one. It checks the syntax and the
// names of functions, not types.
func celProblem(text string) string {
	if text == "" {
		return "is no CEL expression: it is empty"
	}
	p := &celParser{rest: text}
	p.next()
	p.expression()
	if p.problem == "" && p.token != "" {
		p.fail("unexpected %q", p.token)
	}
	return p.problem
}

// celParser is a parser of CEL by recursive descent. After a problem, it has no tokens any more.
type celParser struct {
	rest, token string
	depth       int
	problem     string
}

func (p *celParser) fail(format string, args ...any) {
	if p.problem == "" {
		p.problem = "is no CEL expression that Envoy accepts: " + fmt.Sprintf(format, args...)
	}
	p.rest, p.token = "", ""
}

// next reads the next token; "" at the end.
func (p *celParser) next() {
	p.rest = p.rest[len(celSpace.FindString(p.rest)):]
	p.token = celToken.FindString(p.rest)
	if p.token == "" && p.rest != "" {
		p.fail("%.20q has no meaning", p.rest)
	}
	p.rest = p.rest[len(p.token):]
}

// accept reads a token if it is this one.
func (p *celParser) accept(token string) bool {
	if p.token != token {
		return false
	}
	p.next()
	return true
}

func (p *celParser) expect(token string) {
	if !p.accept(token) {
		p.fail("want %q, and there is %q", token, p.token)
	}
}

// expression reads CONDITION ? EXPRESSION : EXPRESSION, or what is in its place.
func (p *celParser) expression() {
	if p.depth++; p.depth > maxCELDepth {
		p.fail("it is nested too deep")
	}
	defer func() { p.depth-- }()
	p.operators()
	if p.accept("?") {
		p.operators()
		p.expect(":")
		p.expression()
	}
}

// celOperators are all that stand between two operands. The precedence does not matter for the syntax.
var celOperators = []string{"&&", "||", "<", "<=", ">", ">=", "==", "!=", "in", "+", "-", "*", "/", "%"}

func (p *celParser) operators() {
	p.operand()
	for slices.Contains(celOperators, p.token) {
		p.next()
		p.operand()
	}
}

// operand reads a value with what is before and after it.
func (p *celParser) operand() {
	for sign := p.token; p.token == sign && (sign == "!" || sign == "-"); {
		p.next()
	}
	p.primary()
	for p.problem == "" {
		switch {
		case p.accept("."):
			name := p.identifier()
			if p.token == "(" {
				p.call(name)
			} else if p.token == "{" {
				p.fields()
			}
		case p.accept("["):
			p.expression()
			p.expect("]")
		default:
			return
		}
	}
}

func (p *celParser) primary() {
	switch {
	case p.token == "":
		p.fail("it ends too early")
	case p.accept("("):
		p.expression()
		p.expect(")")
	case p.accept("["):
		p.list("]", p.expression)
	case p.token == "{":
		p.fields()
	case p.accept("."):
		p.identifier()
	case isCELLiteral(p.token):
		p.next()
	default:
		name := p.identifier()
		if p.token == "(" {
			p.call(name)
		}
	}
}

// isCELLiteral reports whether a token is a number or a string.
func isCELLiteral(token string) bool {
	return strings.ContainsAny(token[len(token)-1:], `"'`) || token[0] >= '0' && token[0] <= '9' || len(token) > 1 && token[0] == '.'
}

// identifier reads a name.
func (p *celParser) identifier() string {
	name := p.token
	if name == "" || !(name[0] == '_' || name[0] >= 'A' && name[0] <= 'Z' || name[0] >= 'a' && name[0] <= 'z') || name == "in" || isCELLiteral(name) {
		p.fail("want a name, and there is %q", name)
		return ""
	}
	if slices.Contains(celReserved, name) {
		p.fail("%q is reserved", name)
	}
	p.next()
	return name
}

// call reads the arguments of a function.
func (p *celParser) call(function string) {
	if !slices.Contains(celFunctions, function) {
		p.fail("there is no function %q", function)
	}
	p.expect("(")
	p.list(")", p.expression)
}

// fields reads {KEY: VALUE, …}.
func (p *celParser) fields() {
	p.expect("{")
	p.list("}", func() {
		p.expression()
		p.expect(":")
		p.expression()
	})
}

// list reads elements with commas between them until a token. Only arguments may not end with a comma.
func (p *celParser) list(end string, element func()) {
	for p.problem == "" && !p.accept(end) {
		element()
		if p.accept(end) {
			return
		}
		if p.expect(","); end == ")" && p.token == end {
			p.fail("an argument is missing")
		}
	}
}
