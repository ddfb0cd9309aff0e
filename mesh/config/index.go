package config

import (
	"cmp"
	"maps"
	"slices"
	"sync"
)

// Index holds documents by kind, namespace and name. Its lists are kept until they change, so that
// List does not copy. It may be used by several goroutines at once; the zero Index is empty.
type Index struct {
	mu    sync.RWMutex
	kinds map[Kind]*kindIndex
}

var _ Reader = (*Index)(nil)

// kindIndex holds the documents of a kind.
type kindIndex struct {
	documents map[Key]*Config
	names     map[string]map[string]bool // namespace → names
	lists     map[string][]*Config       // by namespace, "" for all; without those that changed
}

// Get returns a document; nil if there is none.
func (x *Index) Get(key Key) *Config {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if k := x.kinds[key.Kind]; k != nil {
		return k.documents[key]
	}
	return nil
}

// List returns the documents of a kind, of one namespace or, for "", of all, by namespace and name.
// The list must not be changed.
func (x *Index) List(kind Kind, namespace string) []*Config {
	x.mu.RLock()
	k := x.kinds[kind]
	if k == nil {
		x.mu.RUnlock()
		return nil
	}
	list, made := k.lists[namespace]
	x.mu.RUnlock()
	if made {
		return list
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return k.list(kind, namespace)
}

// list makes a list, which changed forgets. None is kept for a namespace without documents: anybody may ask for any name.
func (k *kindIndex) list(kind Kind, namespace string) []*Config {
	if namespace != "" && len(k.names[namespace]) == 0 {
		return nil
	}
	if list, made := k.lists[namespace]; made {
		return list
	}
	var list []*Config
	if namespace == "" {
		list = slices.Collect(maps.Values(k.documents))
	} else {
		for name := range k.names[namespace] {
			list = append(list, k.documents[Key{kind, namespace, name}])
		}
	}
	slices.SortFunc(list, func(a, b *Config) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	k.lists[namespace] = list
	return list
}

// Put adds a document, or replaces the one that has its key, and returns that; nil for none.
func (x *Index) Put(c *Config) (old *Config) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.kinds == nil {
		x.kinds = make(map[Kind]*kindIndex)
	}
	k := x.kinds[c.Kind]
	if k == nil {
		k = &kindIndex{make(map[Key]*Config), make(map[string]map[string]bool), make(map[string][]*Config)}
		x.kinds[c.Kind] = k
	}
	old = k.documents[c.Meta.Key]
	k.documents[c.Meta.Key] = c
	if k.names[c.Namespace] == nil {
		k.names[c.Namespace] = make(map[string]bool)
	}
	k.names[c.Namespace][c.Name] = true
	k.changed(c.Namespace)
	return old
}

// Remove removes a document and returns it; nil if there was none.
func (x *Index) Remove(key Key) (old *Config) {
	x.mu.Lock()
	defer x.mu.Unlock()
	k := x.kinds[key.Kind]
	if k == nil || k.documents[key] == nil {
		return nil
	}
	old = k.documents[key]
	delete(k.documents, key)
	if delete(k.names[key.Namespace], key.Name); len(k.names[key.Namespace]) == 0 {
		delete(k.names, key.Namespace)
	}
	k.changed(key.Namespace)
	return old
}

func (k *kindIndex) changed(namespace string) {
	delete(k.lists, namespace)
	delete(k.lists, "")
}

// Len returns how many documents there are.
func (x *Index) Len() (n int) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, k := range x.kinds {
		n += len(k.documents)
	}
	return n
}

// All returns all documents, in the order of Schemas, and by namespace and name.
func (x *Index) All() []*Config {
	var all []*Config
	for _, s := range Schemas {
		all = append(all, x.List(s.Kind, "")...)
	}
	return all
}

// Handlers are the functions that are called on changes, by kind. They are registered before they
// are called; calls are made by one goroutine at a time.
type Handlers struct {
	mu     sync.Mutex
	byKind map[Kind][]func(Event)
}

// RegisterHandler adds a handler for changes of a kind.
func (h *Handlers) RegisterHandler(kind Kind, handler func(Event)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byKind == nil {
		h.byKind = make(map[Kind][]func(Event))
	}
	h.byKind[kind] = append(h.byKind[kind], handler)
}

// Call calls the handlers of the kind of the document that changed, in the order in which they were
// registered.
func (h *Handlers) Call(e Event) {
	h.mu.Lock()
	handlers := h.byKind[e.Key().Kind]
	h.mu.Unlock()
	for _, handler := range handlers {
		handler(e)
	}
}
