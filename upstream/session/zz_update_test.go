package session
import ("testing";"os";"strings";"path/filepath";"fmt")
func TestZZ(t *testing.T){
 for _, f := range []struct{n string; forms []Form}{{"both.txt",[]Form{SotW,Delta}},{"sotw.txt",[]Form{SotW}},{"delta.txt",[]Form{Delta}}} {
  p := filepath.Join("testdata",f.n)
  b,_ := os.ReadFile(p)
  lines := strings.Split(string(b),"\n")
  for _, tr := range readTranscripts(t,p) {
   var prev []string
   for fi, form := range f.forms {
    tk := newTalk(form, len(f.forms)==1)
    for i, l := range tr.lines {
     tk.got=nil
     if err := tk.do(strings.Fields(l.command)); err!=nil { t.Errorf("%s:%d %v",p,l.number,err) }
     got := strings.Join(tk.got,", ")
     if fi==0 { prev=append(prev,got) } else if prev[i]!=got { got = prev[i]+" ||||| "+got }
     lines[l.number-1]=l.command
     if got!="" { lines[l.number-1]=fmt.Sprintf("%-32s -> %s",l.command,got)}
    }
   }
  }
  os.WriteFile(p+".new",[]byte(strings.Join(lines,"\n")),0o644)
 }
}
