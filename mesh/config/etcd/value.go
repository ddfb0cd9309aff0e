package etcd

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// maxDocument bounds a document, in bytes: what etcd takes by default, 1.5 MiB, with room for the rest of the request.
const maxDocument = 1 << 20

// encode returns the value of a document.
func (c *Client) encode(doc *config.Config, at time.Time) ([]byte, error) {
	value, err := config.Marshal(doc, config.Author{Name: c.author, Time: at})
	if err == nil && doc.Kind == config.Secret {
		value, err = c.sealer.Seal(doc.Meta.Key, value)
	}
	if err == nil && len(value) > maxDocument {
		err = fmt.Errorf("it has %d bytes: a document in etcd has %d at most; divide it", len(value), maxDocument)
	}
	return value, err
}

// decode reads a document that has a revision and a place in the history, and returns what is wrong in it. The document is nil if there is an error.
func (c *Client) decode(path string, value []byte, revision int64, order config.StoreOrder) (config.Key, *config.Config, []config.Problem) {
	problem := func(key config.Key, format string, args ...any) []config.Problem {
		return []config.Problem{{File: path, Key: key, Message: fmt.Sprintf(format, args...)}}
	}
	key, ok := c.parse(path)
	if !ok {
		return key, nil, []config.Problem{{Code: config.StoreKeyIgnored, File: printable(path), Severity: config.SeverityWarning, Message: "it is not the key of a document, and not read: want " + c.documents() + "RESOURCE/NAMESPACE/NAME"}}
	}
	if len(value) > maxDocument {
		return key, nil, problem(key, "it has %d bytes: a document has %d at most", len(value), maxDocument)
	}
	if key.Kind == config.Secret {
		opened, err := c.sealer.Open(key, value)
		if err != nil {
			return key, nil, problem(key, "%v", err)
		}
		value = opened
	}
	documents, broken := config.Read(path+".json", value)
	if broken != nil {
		return key, nil, problem(key, "%s", broken.Message)
	}
	for _, d := range documents {
		if d.Key != key {
			continue
		}
		for i := range d.Problems {
			d.Problems[i].File, d.Problems[i].Line = path, 0
		}
		if d.Config == nil {
			return key, nil, d.Problems
		}
		stored := *d.Config
		stored.ResourceVersion = strconv.FormatInt(revision, 10)
		stored.Origin, stored.Order = path, order
		return key, &stored, d.Problems
	}
	names := make([]string, 0, len(documents))
	for _, d := range documents {
		names = append(names, d.Key.String())
	}
	return key, nil, problem(key, "its value is another document: %q", strings.Join(names, ", "))
}

// decodeKV is decode for what etcd returns, with its create_revision as the age.
func (c *Client) decodeKV(kv *mvccpb.KeyValue) (config.Key, *config.Config, []config.Problem) {
	return c.decode(string(kv.Key), kv.Value, kv.ModRevision, config.StoreOrder{Revision: kv.CreateRevision})
}

// printable returns a key of no document for messages: anything may stand in it.
func printable(path string) string {
	if quoted := strconv.Quote(path); quoted != `"`+path+`"` {
		return quoted
	}
	return path
}
