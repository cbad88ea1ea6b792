/* SPDX-License-Identifier: Apache-2.0 */
#include "cold_slots.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

static uint16_t crc16(const char *bytes, size_t n) {
    uint16_t crc = 0;
    for (size_t i = 0; i < n; i++) {
        crc = (uint16_t)(crc ^ (uint16_t)((uint8_t)bytes[i] << 8));
        for (int bit = 0; bit < 8; bit++) crc = (uint16_t)(crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1);
    }
    return crc;
}

uint32_t cold_slot_of(const char *key, size_t bytes) {
    const char *open = memchr(key, '{', bytes);
    const char *close = open ? memchr(open, '}', bytes - (size_t)(open - key)) : NULL;
    if (close && close > open + 1) return crc16(open + 1, (size_t)(close - open - 1)) % COLD_SLOTS;
    return crc16(key, bytes) % COLD_SLOTS;
}

bool cold_address_of(const char *host, size_t bytes, uint64_t port, struct config_listen *ret_address) {
    struct config_listen address;
    struct in6_addr number;
    memset(&address, 0, sizeof address);
    if (bytes >= 2 && host[0] == '[' && host[bytes - 1] == ']') {
        host++;
        bytes -= 2;
    }
    if (!bytes || bytes >= INET6_ADDRSTRLEN || port < 1 || port > 65535) return false;
    memcpy(address.path, host, bytes);
    address.port = (uint16_t)port;
    if (inet_pton(AF_INET, address.path, &number) == 1) address.kind = LISTEN_TCP4;
    else if (inet_pton(AF_INET6, address.path, &number) == 1) address.kind = LISTEN_TCP6;
    else return false;
    *ret_address = address;
    return true;
}

bool cold_is_same_address(const struct config_listen *a, const struct config_listen *b) {
    return a->kind == b->kind && a->port == b->port && strcmp(a->path, b->path) == 0;
}

bool cold_read_redirect(const char *error, size_t bytes, struct cold_redirect *ret_redirect) {
    struct cold_redirect to;
    char text[128], slot[8], host[96], *colon;
    uint64_t number, port;
    memset(&to, 0, sizeof to);
    snprintf(text, sizeof text, "%.*s", (int)(bytes < sizeof text ? bytes : sizeof text - 1), error);
    to.ask = strncmp(text, "ASK ", 4) == 0;
    if (!to.ask && strncmp(text, "MOVED ", 6) != 0) return false;
    if (sscanf(text, "%*s %7s %95s", slot, host) != 2 || !(colon = strrchr(host, ':'))) return false;
    if (config_value_number(slot, 10, &number) || number >= COLD_SLOTS) return false;
    if (config_value_number(colon + 1, 10, &port) || port < 1 || port > 65535) return false;
    to.slot = (uint32_t)number;
    if (colon == host) to.to.port = (uint16_t)port;
    else if (!cold_address_of(host, (size_t)(colon - host), port, &to.to)) return false;
    *ret_redirect = to;
    return true;
}
