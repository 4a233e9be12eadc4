-- Each query after a line with its name. Joins of the kinds of TPC-H's.
--: pricing
SELECT returned, count(*), sum(quantity), sum(price * (1 - discount)) FROM items WHERE shipped <= '2026-01-01' GROUP BY returned;
--: cheapest supplier
SELECT s.id, n.name, p.id FROM parts p JOIN supplies c ON c.part = p.id JOIN suppliers s ON s.id = c.supplier JOIN nations n ON n.id = s.nation
WHERE p.size = 15 AND p.kind LIKE '%7' AND n.region = 3 AND c.cost = (SELECT min(d.cost) FROM supplies d JOIN suppliers t ON t.id = d.supplier
JOIN nations m ON m.id = t.nation WHERE d.part = p.id AND m.region = 3) ORDER BY s.balance DESC, p.id LIMIT 100;
--: unshipped orders
SELECT i.order_id, sum(i.price * (1 - i.discount)) AS revenue, o.day FROM customers c JOIN orders o ON o.customer = c.id JOIN items i ON i.order_id = o.id
WHERE c.segment = 'build' AND o.day < '2022-03-15' AND i.shipped > '2022-03-15' GROUP BY i.order_id, o.day ORDER BY revenue DESC, o.day LIMIT 10;
--: priorities
SELECT o.priority, count(*) FROM orders o WHERE o.day >= '2021-07-01' AND o.day < '2021-10-01'
AND EXISTS (SELECT 1 FROM items i WHERE i.order_id = o.id AND i.received > i.shipped + 20) GROUP BY o.priority;
--: local suppliers
SELECT n.name, sum(i.price * (1 - i.discount)) FROM customers c JOIN orders o ON o.customer = c.id JOIN items i ON i.order_id = o.id
JOIN suppliers s ON s.id = i.supplier AND s.nation = c.nation JOIN nations n ON n.id = s.nation
WHERE n.region = 2 AND o.day >= '2022-01-01' AND o.day < '2023-01-01' GROUP BY n.name;
--: discounts
SELECT sum(price * discount) FROM items WHERE shipped >= '2022-01-01' AND shipped < '2022-02-01' AND discount BETWEEN 0.05 AND 0.07 AND quantity < 24;
--: trade
SELECT a.name, b.name, extract(year FROM i.shipped), sum(i.price) FROM suppliers s JOIN items i ON i.supplier = s.id JOIN orders o ON o.id = i.order_id
JOIN customers c ON c.id = o.customer JOIN nations a ON a.id = s.nation JOIN nations b ON b.id = c.nation
WHERE (a.id = 3 AND b.id = 7 OR a.id = 7 AND b.id = 3) AND i.shipped BETWEEN '2021-01-01' AND '2022-12-31' GROUP BY 1, 2, 3;
--: profit
SELECT n.name, extract(year FROM o.day), sum(i.price * (1 - i.discount) - c.cost * i.quantity) FROM parts p JOIN items i ON i.part = p.id
JOIN suppliers s ON s.id = i.supplier LEFT JOIN supplies c ON c.part = i.part AND c.supplier = i.supplier JOIN orders o ON o.id = i.order_id
JOIN nations n ON n.id = s.nation WHERE p.brand = 'brand 12' GROUP BY 1, 2;
--: returns
SELECT c.id, n.name, sum(i.price * (1 - i.discount)) AS lost FROM customers c JOIN orders o ON o.customer = c.id JOIN items i ON i.order_id = o.id
JOIN nations n ON n.id = c.nation WHERE o.day >= '2022-10-01' AND o.day < '2023-01-01' AND i.returned GROUP BY c.id, n.name ORDER BY lost DESC LIMIT 20;
--: stock
SELECT c.part, sum(c.cost * c.stock) AS worth FROM supplies c JOIN suppliers s ON s.id = c.supplier WHERE s.nation = 7
GROUP BY c.part HAVING sum(c.cost * c.stock) > (SELECT sum(d.cost * d.stock) * 0.001 FROM supplies d JOIN suppliers t ON t.id = d.supplier WHERE t.nation = 7);
--: orders of each customer
SELECT n, count(*) FROM (SELECT c.id, count(o.id) AS n FROM customers c LEFT JOIN orders o ON o.customer = c.id AND o.state <> 'late' GROUP BY c.id) q GROUP BY n;
--: brands
SELECT p.brand, p.size, count(DISTINCT c.supplier) FROM supplies c JOIN parts p ON p.id = c.part WHERE p.brand <> 'brand 5' AND p.size IN (3, 9, 14, 19)
AND c.supplier NOT IN (SELECT s.id FROM suppliers s WHERE s.balance < -500) GROUP BY p.brand, p.size;
--: small quantities
SELECT sum(i.price) / 7 FROM items i JOIN parts p ON p.id = i.part WHERE p.brand = 'brand 3' AND p.kind LIKE 'kind 1%'
AND i.quantity < (SELECT 0.2 * avg(j.quantity) FROM items j WHERE j.part = p.id);
--: large orders
SELECT c.id, o.id, sum(i.quantity) FROM customers c JOIN orders o ON o.customer = c.id JOIN items i ON i.order_id = o.id
WHERE o.id IN (SELECT j.order_id FROM items j GROUP BY j.order_id HAVING sum(j.quantity) > 300) GROUP BY c.id, o.id ORDER BY 3 DESC LIMIT 100;
--: late suppliers
SELECT s.id, count(*) FROM suppliers s JOIN items i ON i.supplier = s.id JOIN orders o ON o.id = i.order_id WHERE o.state = 'late' AND s.nation = 11
AND EXISTS (SELECT 1 FROM items j WHERE j.order_id = i.order_id AND j.supplier <> i.supplier)
AND NOT EXISTS (SELECT 1 FROM items k WHERE k.order_id = i.order_id AND k.supplier <> i.supplier AND k.received > k.shipped + 25) GROUP BY s.id;
--: customers without orders
SELECT c.nation, count(*), sum(c.balance) FROM customers c WHERE c.balance > (SELECT avg(d.balance) FROM customers d WHERE d.balance > 0)
AND NOT EXISTS (SELECT 1 FROM orders o WHERE o.customer = c.id) GROUP BY c.nation;
--: one customer
SELECT o.id, o.day, sum(i.price) FROM orders o JOIN items i ON i.order_id = o.id WHERE o.customer = 17 GROUP BY o.id ORDER BY o.day DESC LIMIT 5;
--: a week
SELECT p.kind, count(*) FROM orders o JOIN items i ON i.order_id = o.id JOIN parts p ON p.id = i.part WHERE o.day BETWEEN '2022-05-02' AND '2022-05-08' GROUP BY p.kind;
