package config

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/proto"
)

// ContentVersion returns a hash of what a document says and how old it is: its Spec, Status, labels, annotations, version and
// age, without where it is written. Stores that have no versions of their own use it as
// the ResourceVersion.
func ContentVersion(c *Config) string {
	h := xxhash.New()
	var spec []byte
	var err error
	if m, ok := c.Spec.(proto.Message); ok && SchemaOf(c.Kind).IsIstio() {
		spec, err = proto.MarshalOptions{Deterministic: true}.Marshal(m)
	} else {
		spec, err = json.Marshal(c.Spec)
	}
	if err != nil {
		// Only text that is not UTF-8 cannot be encoded, and no reader accepts it.
		spec = fmt.Append(nil, c.Spec)
	}
	// Writes to a hash have no errors.
	_, _ = h.Write(spec)
	if c.Status != nil {
		if status, err := (proto.MarshalOptions{Deterministic: true}).Marshal(c.Status); err == nil {
			_, _ = h.Write(status)
		}
	}
	_, _ = fmt.Fprintf(h, "\x00%q%q%q%s", c.Labels, c.Annotations, c.APIVersion, c.Created.UTC().Format(time.RFC3339Nano))
	if c.Order != (StoreOrder{}) { // a document that was deleted and created again is another one, though it says the same
		_, _ = fmt.Fprintf(h, "\x00%d.%d", c.Order.Revision, c.Order.Rank)
	}
	return strconv.FormatUint(h.Sum64(), 16)
}
