// SPDX-License-Identifier: Apache-2.0
// The terminal through libedit (BSD licence): the one file that includes it.
#include <clocale>
#include <cstdio>
#include <cwchar>
#include <histedit.h>
#include <langinfo.h>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "app/line_editor.h"
#include "tokenizer/utf8.h"

namespace koho::app {
namespace {

constexpr int kHistoryLines = 1000;
// Terminals bracket pasted text when asked to.
constexpr std::string_view kBracketPastes = "\x1b[?2004h";
constexpr std::string_view kPlainPastes = "\x1b[?2004l";
constexpr std::wstring_view kPasteEnd = L"\x1b[201~";
constexpr std::size_t kPasteLettersMax = std::size_t{4} << 20U;

/// What the editor's functions, which libedit calls, share with the object.
struct State {
  std::string prompt;
  bool interrupted = false;
  bool ended = false;
};

State& state_of(EditLine* editor) {
  void* data = nullptr;
  el_get(editor, EL_CLIENTDATA, &data);
  return *static_cast<State*>(data);
}

char* prompt_of(EditLine* editor) {
  return state_of(editor).prompt.data();
}

unsigned char on_interrupt(EditLine* editor, wint_t /*key*/) {
  state_of(editor).interrupted = true;
  return CC_EOF;
}

/// Ctrl-D: the end at an empty line, else deletes the letter under the cursor.
unsigned char on_end(EditLine* editor, wint_t /*key*/) {
  const LineInfoW* line = el_wline(editor);
  if (line->lastchar == line->buffer) {
    state_of(editor).ended = true;
    return CC_EOF;
  }
  if (line->cursor == line->lastchar) return CC_ERROR;
  el_cursor(editor, 1);
  el_deletestr(editor, 1);
  return CC_REFRESH;
}

unsigned char on_newline(EditLine* editor, wint_t /*key*/) {
  return el_winsertstr(editor, L"\n") == 0 ? CC_REFRESH : CC_ERROR;
}

/// Pasted text, up to its closing bracket, goes into the line as it is.
unsigned char on_paste(EditLine* editor, wint_t /*key*/) {
  std::wstring text;
  wchar_t letter = 0;
  while (text.size() < kPasteLettersMax && el_wgetc(editor, &letter) == 1) {
    text += letter == L'\r' ? L'\n' : letter;
    if (!text.ends_with(kPasteEnd)) continue;
    text.resize(text.size() - kPasteEnd.size());
    break;
  }
  return el_winsertstr(editor, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

std::string narrow(std::wstring_view wide) {
  std::string text;
  for (const wchar_t letter : wide) append_utf8(text, static_cast<char32_t>(letter));
  return text;
}

std::wstring widened(const std::string& text) {
  std::wstring wide(text.size() + 1, L'\0');
  const std::size_t length = std::mbstowcs(wide.data(), text.c_str(), wide.size());
  wide.resize(length == static_cast<std::size_t>(-1) ? 0 : length);
  return wide;
}

class TerminalEditor final : public LineEditor {
 public:
  TerminalEditor(EditLine* editor, HistoryW* history, std::string file)
      : editor_(editor), history_(history), file_(std::move(file)) {
    el_set(editor_, EL_CLIENTDATA, &state_);
    el_set(editor_, EL_PROMPT, &prompt_of);
    el_wset(editor_, EL_EDITOR, L"emacs");
    HistEventW event{};
    history_w(history_, &event, H_SETSIZE, kHistoryLines);
    history_w(history_, &event, H_SETUNIQUE, 1);
    if (!file_.empty()) history_w(history_, &event, H_LOAD, file_.c_str());
    el_wset(editor_, EL_HIST, history_w, history_);
    // Ctrl-C is a key of the editor while a line is typed, and a signal while an answer runs.
    el_wset(editor_, EL_SETTY, L"-d", L"-isig", nullptr);
    add(L"koho-interrupt", L"Gives the line up", &on_interrupt, {L"^C"});
    add(L"koho-end", L"Ends, or deletes a letter", &on_end, {L"^D"});
    add(L"koho-newline", L"A new line of the same message", &on_newline, {L"\\e\\r", L"\\e\\n"});
    add(L"koho-paste", L"Takes pasted text", &on_paste, {L"\\e[200~"});
    el_wset(editor_, EL_BIND, L"^R", L"em-inc-search-prev", nullptr);
    el_wset(editor_, EL_BIND, L"^W", L"ed-delete-prev-word", nullptr);
  }
  ~TerminalEditor() override {
    el_end(editor_);
    history_wend(history_);
  }

  Result<Read> read(const std::string& prompt, std::string& line) override {
    state_ = {.prompt = prompt};
    write_out(kBracketPastes);
    // Keys one by one before the prompt shows: libedit alone does this behind it, and a Ctrl-D
    // between the two would be lost.
    el_wset(editor_, EL_PREP_TERM, 1);
    int count = 0;
    const wchar_t* typed = el_wgets(editor_, &count);
    write_out(kPlainPastes);
    if (state_.interrupted || typed == nullptr || count <= 0) {
      el_wset(editor_, EL_UNBUFFERED, 0);
      write_out("\n");
      return state_.interrupted ? Read::interrupt : Read::end;
    }
    line = narrow({typed, static_cast<std::size_t>(count)});
    if (line.ends_with('\n')) line.pop_back();
    return Read::line;
  }

  void remember(const std::string& text) override {
    HistEventW event{};
    if (text.empty() || history_w(history_, &event, H_ENTER, widened(text).c_str()) < 0) return;
    if (file_.empty()) return;
    const mode_t before = umask(077);  // what is typed is its user's own
    history_w(history_, &event, H_SAVE, file_.c_str());
    umask(before);
  }

 private:
  void add(const wchar_t* name,
           const wchar_t* help,
           unsigned char (*function)(EditLine*, wint_t),
           std::initializer_list<const wchar_t*> keys) {
    el_wset(editor_, EL_ADDFN, name, help, function);
    for (const wchar_t* key : keys) el_wset(editor_, EL_BIND, key, name, nullptr);
  }

  static void write_out(std::string_view text) {
    std::fflush(stdout);
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  EditLine* editor_;
  HistoryW* history_;
  std::string file_;
  State state_;
};

}  // namespace

std::unique_ptr<LineEditor> make_terminal_editor(const std::string& history_file) {
  if (isatty(STDIN_FILENO) != 1 || isatty(STDOUT_FILENO) != 1) return nullptr;
  // Typed letters are UTF-8, whatever the environment says.
  std::setlocale(LC_CTYPE, "");
  if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
  EditLine* editor = el_init("koho", stdin, stdout, stderr);
  HistoryW* history = history_winit();
  if (editor != nullptr && history != nullptr)
    return std::make_unique<TerminalEditor>(editor, history, history_file);
  if (editor != nullptr) el_end(editor);
  if (history != nullptr) history_wend(history);
  return nullptr;
}

}  // namespace koho::app
