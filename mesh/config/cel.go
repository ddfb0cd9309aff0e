package config

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
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

// celCall is how often a function of CEL takes an argument: as a function, and as a method of its first argument.
type celCall struct{ function, method []int }

// celFunctions are the functions and macros that Envoy's CEL has, as Envoy 1.36 and 1.40 have told. Envoy rejects a listener with any other
// one: string() and what goes through lists (all, exists, map, filter) are not there.
var celFunctions = map[string]celCall{
	"size": {[]int{1}, []int{0}}, "contains": {[]int{2}, []int{1}}, "startsWith": {[]int{2}, []int{1}}, "endsWith": {[]int{2}, []int{1}},
	"matches": {[]int{2}, []int{1}}, "has": {[]int{1}, nil},
	"int": {[]int{1}, nil}, "uint": {[]int{1}, nil}, "double": {[]int{1}, nil}, "bool": {[]int{1}, nil}, "bytes": {[]int{1}, nil}, "type": {[]int{1}, nil},
	"dyn": {[]int{1}, nil}, "timestamp": {[]int{1}, nil}, "duration": {[]int{1}, nil},
	"getFullYear": {nil, []int{0, 1}}, "getMonth": {nil, []int{0, 1}}, "getDate": {nil, []int{0, 1}}, "getDayOfMonth": {nil, []int{0, 1}},
	"getDayOfWeek": {nil, []int{0, 1}}, "getDayOfYear": {nil, []int{0, 1}}, "getHours": {nil, []int{0, 1}}, "getMinutes": {nil, []int{0, 1}},
	"getSeconds": {nil, []int{0, 1}}, "getMilliseconds": {nil, []int{0, 1}},
}

// celProblem returns why a text is no expression of CEL that Envoy accepts; "" if it is one. It checks the syntax and the
// names of functions, not types.
func celProblem(text string) string {
	if text == "" {
		return "is no CEL expression: it is empty"
	}
	p := &celParser{text: text, rest: text}
	p.next()
	p.expression()
	if p.problem == "" && p.token != "" {
		p.fail("unexpected %q", p.token)
	}
	return p.problem
}

// celParser is a parser of CEL by recursive descent. After a problem, it has no tokens any more.
type celParser struct {
	text        string
	rest, token string
	tokens      int // that were read
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
	p.tokens++
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
				p.call(name, true)
			} else if p.token == "{" {
				if !celMessage.MatchString(p.text[:len(p.text)-len(p.rest)-len(p.token)]) {
					p.fail("there is no type %q", name)
				}
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
		p.literal()
	default:
		name := p.identifier()
		if p.token == "(" {
			p.call(name, false)
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

// literal reads a number or a string.
func (p *celParser) literal() {
	text := p.token
	switch last := text[len(text)-1]; {
	case last == '"' || last == '\'':
		raw := strings.ContainsAny(text[:strings.IndexAny(text, `"'`)], "rR")
		if wrong := text[len(celEscapes.FindString(text)):]; wrong != "" && !raw {
			p.fail("%.2s is no escape sequence", wrong)
		}
	case strings.ContainsAny(text, ".eE") && !strings.HasPrefix(text, "0x"):
	case last == 'u' || last == 'U':
		if _, err := strconv.ParseUint(text[:len(text)-1], 0, 64); err != nil {
			p.fail("%s is too large", text)
		}
	default:
		if _, err := strconv.ParseInt(text, 0, 64); err != nil && text != "9223372036854775808" { // which may have a minus before it
			p.fail("%s is too large", text)
		}
	}
	p.next()
}

// celEscapes matches a string up to what follows a backslash and is no escape sequence.
var celEscapes = regexp.MustCompile(`^(?:[^\\]|\\[abfnrtv\\?"'\x60]|\\[xX][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\[0-3][0-7]{2})*`)

// call reads the arguments of a function, or of a method.
func (p *celParser) call(function string, method bool) {
	takes, known := celFunctions[function]
	if !known {
		p.fail("there is no function %q", function)
	}
	p.expect("(")
	given := 0
	p.list(")", func() {
		given++
		literal, read, rest := p.token, p.tokens, p.rest
		p.expression()
		switch argument := strings.TrimSpace(rest[:len(rest)-min(len(rest), len(p.rest)+len(p.token))]); {
		case function == "matches" && p.tokens == read+1 && isCELLiteral(literal):
			p.pattern(literal)
		case function == "has" && p.problem == "" && !celField.MatchString(argument):
			p.fail("has() is about a field, such as has(request.headers)")
		}
	})
	counts := takes.function
	if method {
		counts = takes.method
	}
	if !slices.Contains(counts, given) {
		p.fail("%s does not take %d arguments so", function, given)
	}
}

// celMessage matches the end of the name of a type of which values can be made.
var celMessage = regexp.MustCompile(`(?:^|[^\w.])\.?google\.protobuf\.(?:Duration|Timestamp|(?:Bool|Bytes|Double|Float|U?Int32|U?Int64|String)Value)\s*$`)

// celField matches the end of the name of a field.
var celField = regexp.MustCompile(`\.\s*[A-Za-z_][A-Za-z0-9_]*$`)

// pattern checks the regular expression in a string, which RE2 reads as UTF-8.
func (p *celParser) pattern(literal string) {
	text, err := strconv.Unquote(literal)
	if raw := strings.TrimLeft(literal, "rR"); raw != literal {
		text, err = strings.Trim(raw, `"'`), nil
	} else if literal[0] == '\'' {
		text, err = strconv.Unquote(`"` + strings.ReplaceAll(strings.Trim(literal, "'"), `"`, `\"`) + `"`)
	}
	if err != nil {
		return // in a form that only CEL has
	}
	if _, err := syntax.Parse(text, syntax.Perl); err != nil {
		p.fail("%q is no RE2 regular expression: %s", text, strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	} else if problem := classNameProblem(text); problem != "" {
		p.fail("%q is no RE2 regular expression: %s", text, problem)
	}
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
