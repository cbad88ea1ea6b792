# SPDX-License-Identifier: Apache-2.0
# cmake -DPAGE=index.html -DOUT=ui_page.c -P embed.cmake: the page as an array of C, and the Content-Security-Policy that
# allows its one <style> and its one <script>, by their SHA-256, and nothing else.

# SHA-256 of a text in base64, which CMake has not: three hexadecimal digits are two of base64, one is left over.
function(digest text ret)
  set(letters ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/)
  string(SHA256 hex "${text}")
  set(base64 "")
  foreach(at RANGE 0 62 3)
    string(SUBSTRING ${hex} ${at} 3 three)
    math(EXPR high "0x${three} >> 6")
    math(EXPR low "0x${three} & 63")
    string(SUBSTRING ${letters} ${high} 1 a)
    string(SUBSTRING ${letters} ${low} 1 b)
    string(APPEND base64 ${a}${b})
  endforeach()
  string(SUBSTRING ${hex} 63 1 last)
  math(EXPR high "0x${last} << 2")
  string(SUBSTRING ${letters} ${high} 1 a)
  set(${ret} "${base64}${a}=" PARENT_SCOPE)
endfunction()

function(inside text tag ret)
  string(FIND "${text}" "<${tag}>" begin)
  string(FIND "${text}" "</${tag}>" end)
  string(LENGTH "<${tag}>" n)
  if(begin LESS 0 OR end LESS begin)
    message(FATAL_ERROR "${PAGE} has no <${tag}>")
  endif()
  math(EXPR begin "${begin} + ${n}")
  math(EXPR n "${end} - ${begin}")
  string(SUBSTRING "${text}" ${begin} ${n} part)
  set(${ret} "${part}" PARENT_SCOPE)
endfunction()

file(READ "${PAGE}" text)
inside("${text}" style style)
inside("${text}" script script)
digest("${style}" style_digest)
digest("${script}" script_digest)
file(READ "${PAGE}" hex HEX)
string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
file(WRITE "${OUT}" "/* Made of ${PAGE}. */
#include \"ui.h\"
const unsigned char ui_page[] = {
${bytes}
};
const size_t ui_page_bytes = sizeof ui_page;
const char ui_policy[] = \"default-src 'none'; style-src 'sha256-${style_digest}'; script-src 'sha256-${script_digest}'; \"
                         \"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\";
")
