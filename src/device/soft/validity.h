// Whether what a program hands in is an object: made here, of this kind, not destroyed, not
// overwritten. Every control call asks, so that a pointer used once too often is an error and no
// crash later.
//
// Destroying an object leaves its shell: an empty object of the same type with the public part as
// it was, so that the library in front of libibverbs still sees whose it is. The latest shells of
// each type are kept; with one, control calls fail, nothing can be posted and polling gives -1. A
// pointer that is older than these may mean anything, as with every allocator.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <new>

namespace verbena::soft {

// Lies directly behind an object's public part, where a write beyond that ends first.
struct Validity {
  uint64_t word = 0;  // of no kind
  const ibv_context* context = nullptr;
};

// Of each kind and place another one: a copy of an object elsewhere is none.
template <typename Object>
uint64_t validity_word(const Object* object) {
  uint64_t word = 0x9e3779b97f4a7c15;
  for (const char* at = Object::kName; *at != '\0'; ++at) {
    word = (word ^ static_cast<uint64_t>(*at)) * 0x100000001b3;
  }
  return word ^ reinterpret_cast<uint64_t>(object);
}

// The last step of making an object.
template <typename Object>
void make_valid(Object& object, const ibv_context* context) {
  object.validity = {validity_word(&object), context};
}

// Sets errno and last_error(), and returns errno: `name` is what the object should have been.
int refuse_invalid(const char* name);

// 0 if it is a living object, else EINVAL, with a line in last_error(): if (const int error =
// check_valid<Cq>(verbs); error != 0) return error;
template <typename Object, typename Public>
int check_valid(const Public* verbs) {
  const auto* object = reinterpret_cast<const Object*>(verbs);
  const bool valid = object != nullptr && object->validity.word == validity_word(object) &&
                     verbs->context == object->validity.context;
  return valid ? 0 : refuse_invalid(Object::kName);
}

// Destroys `object` (which new made) but for its shell. `prepare` makes the shell refuse what does
// not ask check_valid().
template <typename Object, typename Prepare>
void retire(Object* object, Prepare&& prepare) {
  constexpr size_t kShells = 64;
  static auto* mutex = new std::mutex;  // used until the process ends
  static auto* shells = new std::deque<std::unique_ptr<Object>>;
  const auto verbs = object->verbs;
  std::destroy_at(object);
  std::unique_ptr<Object> shell(new (object) Object);
  shell->verbs = verbs;
  prepare(*shell);
  const std::lock_guard guard(*mutex);
  shells->push_back(std::move(shell));
  if (shells->size() > kShells) shells->pop_front();
}
template <typename Object>
void retire(Object* object) {
  retire(object, [](Object&) {});
}

}  // namespace verbena::soft
